// Files of rows of every kind, whole, packed and damaged.
#include "data/row_source.h"

#include <doctest/doctest.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <tuple>
#include <vector>

#include "data/dataset.h"
#include "data/row_sources.h"
#include "support/letters.h"
#include "support/oracle.h"
#include "support/source_dir.h"

namespace sluice::test {

namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("sluice_rows_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
};

std::string gzipped(const std::string& text) {
  std::string packed(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// With a checksum, as the program zstd writes it.
std::string zstandard(const std::string& text) {
  ZSTD_CCtx* state = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress2(state, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(state);
  return packed;
}

std::vector<std::string> rows_of(const std::string& path) {
  std::vector<std::string> rows;
  for_each_row(path, [&](std::string_view text, int64_t number) {
    CHECK(number == static_cast<int64_t>(rows.size()) + 1);
    rows.emplace_back(text);
    return true;
  });
  return rows;
}

std::string refusal_of(const std::string& path) {
  try {
    rows_of(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string lines =
    "{\"prompt\":\"q1\",\"completion\":\"a\"}\n{\"prompt\":\"q2, \\\"x\\\"\",\"completion\":\"b\\n]\"}\n";
const std::string list =
    "\xEF\xBB\xBF[ {\"prompt\":\"q1\",\n \"completion\":\"a\"} ,\r\n{\"prompt\":\"q2, "
    "\\\"x\\\"\",\"completion\":\"b\\n]\"}\n]\n";
const std::string table_text = "prompt,completion\r\nq1,a\r\n\r\n\"q2, \"\"x\"\"\",\"b\n]\"";

}  // namespace

TEST_CASE("row source: the same rows come out of lines, a list and tables, plain and packed, whatever the name") {
  const Folder folder;
  std::vector<Json> want;
  for (const std::string& row : rows_of(folder.file("train.jsonl", lines))) want.push_back(Json::parse(row));
  REQUIRE(want.size() == 2);
  std::string tabs = table_text;
  for (size_t at : {tabs.find(','), tabs.find("q1,") + 2, tabs.rfind(",\"")}) tabs[at] = '\t';
  int64_t count = 0;
  for (const std::string& text : {lines, list, table_text, tabs}) {
    for (const std::string& bytes :
         {text, gzipped(text), zstandard(text), gzipped(text.substr(0, 9)) + gzipped(text.substr(9)),
          zstandard(text.substr(0, 9)) + zstandard(text.substr(9))}) {
      CAPTURE(text);
      std::vector<Json> got;
      for (const std::string& row : rows_of(folder.file("rows" + std::to_string(count++), bytes)))
        got.push_back(Json::parse(row));
      CHECK(got == want);
    }
  }
}

TEST_CASE("row source: rows that cross the buffer are whole, and memory is that of a row") {
  const Folder folder;
  std::string many_lines, many = "[", csv = "text\n";
  for (int i = 0; i < 4000; ++i) {
    const std::string text(static_cast<size_t>(i * 37 % 1000), static_cast<char>('a' + i % 26));
    many_lines += Json{{"text", text}}.dump() + "\n";
    many += (i > 0 ? "," : "") + Json{{"text", text}}.dump();
    csv += "\"" + text + "\"\n";
  }
  const std::vector<std::string> want = rows_of(folder.file("a.jsonl", many_lines));
  CHECK(want.size() == 4000);
  CHECK(rows_of(folder.file("a.json", many + "]")) == want);
  CHECK(rows_of(folder.file("a.csv", csv)) == want);
  CHECK(rows_of(folder.file("a.csv.gz", gzipped(csv))) == want);
  CHECK(rows_of(folder.file("a.json.zst", zstandard(many + "]"))) == want);
}

TEST_CASE("row source: what is damaged or cut off is said with file and row") {
  const Folder folder;
  const auto said = [&](const std::string& name, const std::string& bytes) {
    const std::string path = folder.file(name, bytes), message = refusal_of(path);
    CHECK(message.starts_with(path));
    return message;
  };
  CHECK(contains(said("a.json", "[{\"a\":1}, {\"b\": [1"), "row 2: the file ends inside the list; it is cut off"));
  CHECK(contains(said("a.json", "[{\"a\":1}"), "row 1: the file ends inside the list"));
  CHECK(contains(said("a.json", "[{\"a\":1},]"), "row 2: there is nothing between two commas, or behind the last"));
  CHECK(contains(said("a.json", "[{\"a\":1}] {\"b\":2}"), "row 1: the list ends behind it, and more text follows"));
  CHECK(contains(said("b.csv", "a,b\n1\n"), "row 1: it has 1 cells, the header has 2"));
  CHECK(contains(said("b.csv", "a,b\n1,2\n\"3,4\n"), "row 2: the quote that opens cell 1 is never closed"));
  CHECK(contains(said("b.csv", "a,b\n1,x\"y\n"), "row 1: cell 2 has a quote inside and none around it"));
  CHECK(contains(said("b.csv", "a,b\n1,\"x\"y\n"), "row 1: cell 2 goes on behind its closing quote"));
  CHECK(contains(said("b.csv", "a,a\n1,2\n"), "header: two columns are called \"a\"; rename one"));
  CHECK(contains(said("b.csv", "a,b\n1,\xFF\n"), "row 1: it is not UTF-8"));
  for (const std::string& packed : {gzipped(lines + list), zstandard(lines + list)}) {
    CHECK(contains(said("c", packed.substr(0, packed.size() - 9)), "data is damaged or cut off"));
    std::string flipped = packed;
    flipped[packed.size() / 2] = static_cast<char>(flipped[packed.size() / 2] ^ 0x55);
    CHECK_FALSE(refusal_of(folder.file("d", flipped)).empty());
  }
  CHECK(contains(said("e.gz", gzipped("PAR1 packed")), "is a Parquet file"));
  CHECK(rows_of(folder.file("f.csv", ",text\n0,x\n")) == std::vector<std::string>{R"({"column 1":"0","text":"x"})"});
  CHECK(rows_of(folder.file("g.json", " [ ] ")).empty());
  CHECK(rows_of(folder.file("h.csv", "")).empty());
}

TEST_CASE("row source: a row's number is its line, its element, or its record behind the header") {
  const Folder folder;
  for (const auto& [name, text, row] : std::vector<std::tuple<const char*, std::string, const char*>>{
           {"n.jsonl", "\n" + lines + "{\"nothing\":1}\n", "row 4: found the keys"},
           {"n.json", "[{\"text\":\"a\"},\n\n{\"nothing\":1}]", "row 2: found the keys"},
           {"n.csv", "text\n\"two\nlines\"\n\nx\n\"\"\n", "row 3: text is \"\""}}) {
    const std::string path = folder.file(name, text);
    try {
      read_dataset(path, chat_model(), {});
      FAIL("read");
    } catch (const Error& e) {
      CHECK(contains(e.what(), path + ": " + row));
    }
  }
}

TEST_CASE("row source: Parquet is read as pyarrow reads it, or refused with what to do; a damaged file is refused") {
  const Folder folder;
  const fs::path golden = source_dir() / "tests/golden/parquet";
  const std::string path = (golden / "rows.parquet").string(), bytes = read_whole_file(path);
  if (!reads_parquet()) {
    CHECK(contains(refusal_of(path), path + " is a Parquet file, which this build does not read: build with"));
    return;
  }
  const std::vector<std::string> rows = rows_of(path), want = rows_of((golden / "rows.jsonl").string());
  REQUIRE(rows.size() == want.size());
  for (size_t i = 0; i < rows.size(); ++i) CHECK(Json::parse(rows[i]) == Json::parse(want[i]));
  CHECK(
      contains(refusal_of(folder.file("a.parquet", bytes.substr(0, 2000))), "the Parquet data is damaged or cut off"));
  std::string hole = bytes;
  hole.replace(300, 200, std::string(200, '\x55'));
  CHECK_FALSE(refusal_of(folder.file("b.parquet", hole)).empty());
}

TEST_CASE("row source: the parts of a folder are found by name, and two files of one part are refused") {
  const Folder folder;
  CHECK(file_of_part(folder.path.string(), "train").empty());
  const std::string train = folder.file("train.csv.gz", ""), valid = folder.file("validation.json", "[]");
  CHECK(file_of_part(folder.path.string(), "train") == train);
  CHECK(file_of_part(folder.path.string(), "valid") == valid);
  CHECK(file_of_part(folder.path.string(), "test").empty());
  folder.file("train.jsonl", "");
  CHECK_THROWS_WITH_AS(file_of_part(folder.path.string(), "train"), doctest::Contains("are both there; keep one"),
                       Error);
}

}  // namespace sluice::test
