// Mapped files, JSON files, and the words of messages.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "io/file_error.h"
#include "io/json_file.h"
#include "io/mmap.h"
#include "support/golden.h"

namespace sluice {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string repeated(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

}  // namespace

TEST_CASE("MappedFile: shows the file's bytes, also after it was moved and its pages were dropped") {
  const test::TemporaryFolder folder;
  const std::string content = repeated("0123456789", 1000);
  test::write_whole_file(folder / "a", content);
  MappedFile first(folder / "a");
  const MappedFile file(std::move(first));
  CHECK(first.size() == 0);
  for (auto advice : {MappedFile::Advice::sequential, MappedFile::Advice::random, MappedFile::Advice::will_need,
                      MappedFile::Advice::dont_need, MappedFile::Advice::normal}) {
    file.advise(advice);
    file.advise(4097, 100, advice);
    file.advise(9999, SIZE_MAX, advice);
    file.advise(SIZE_MAX, 1, advice);
  }
  CHECK(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.size()) == content);
}

TEST_CASE("MappedFile: a path that is no regular file with something in it is refused, without waiting") {
  const test::TemporaryFolder folder;
  auto message = [&](const std::string& name) {
    return test::bad_file_message([&] { MappedFile file(folder / name); });
  };
  test::write_whole_file(folder / "empty", "");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(has(message("nothing"), "No such file or directory"));
  CHECK(has(message("."), "is a directory"));
  CHECK(has(message("empty"), "is empty"));
  CHECK(has(message("pipe"), "not a regular file"));
}

TEST_CASE("parse_json: keeps the order of keys and refuses what is bad, deep or wide, with the place") {
  CHECK(parse_json(R"({"z": 1, "a": [2, "ü"]})", "x").dump() == R"({"z":1,"a":[2,"ü"]})");
  auto message = [](const std::string& text) { return test::bad_file_message([&] { parse_json(text, "x.json"); }); };
  CHECK(has(message("{\"a\": 1,\n\"b\": }"), "x.json: not valid JSON: parse error at line 2, column 6"));
  CHECK(has(message("{\"a\": \"\xff\"}"), "UTF-8"));
  CHECK(has(message(""), "not valid JSON"));
  CHECK(message(repeated("[", 64) + repeated("]", 64)).empty());
  CHECK(has(message(repeated("[", 65) + repeated("]", 65)), "deeper than 64"));
  CHECK(has(message(repeated("{\"a\":", 1000000)), "deeper than 64"));

  std::string keys;
  for (int i = 0; i < 20000; ++i) keys += "\"k" + std::to_string(i) + "\":{\"a\":0},";
  CHECK(message("{" + keys.substr(0, keys.size() - 1) + "}").empty());
  CHECK(has(message("{" + keys + "\"last\":0}"), "more than 20000 keys"));
  CHECK(has(message(std::string((16 << 20) + 1, ' ')), "at most 16 MiB"));
}

TEST_CASE("read_json_file_if_present: nothing when there is no file, an error when it cannot be read") {
  const test::TemporaryFolder folder;
  CHECK_FALSE(read_json_file_if_present(folder / "a.json"));
  test::write_whole_file(folder / "a.json", "[1]");
  CHECK(read_json_file_if_present(folder / "a.json") == Json{1});
  std::filesystem::create_symlink("gone", folder / "b.json");
  CHECK_THROWS_AS(read_json_file_if_present(folder / "b.json"), Error);
}

TEST_CASE("is_utf8: the borders of the well-formed sequences (Unicode, table 3-7)") {
  for (const char* good :
       {"", "a", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"}) {
    CHECK(is_utf8(good));
  }
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xe0\xa0", "\xed\xa0\x80", "\xed\xbf\xbf", "\xef\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xc2z"}) {
    CHECK_FALSE(is_utf8(bad));
  }
}

TEST_CASE("printable: one line of UTF-8, whatever comes in") {
  CHECK(printable("blk.0.größe") == "blk.0.größe");
  CHECK(printable("a\n\x1b[0m\x7f") == "a\\x0a\\x1b[0m\\x7f");
  CHECK(printable("a\xff\xc3") == "a\\xff\\xc3");
  CHECK(printable(std::string(200, 'x')) == std::string(80, 'x') + "...");
  CHECK(is_utf8(printable(repeated("ü", 100))));
}

TEST_CASE("format_bytes: GiB are 2^30") {
  CHECK(format_bytes(0) == "0 bytes");
  CHECK(format_bytes(1048575) == "1048575 bytes");
  CHECK(format_bytes(3 << 19) == "1.5 MiB");
  CHECK(format_bytes(uint64_t{5} << 29) == "2.50 GiB");
}

}  // namespace sluice
