// Every file of tests/golden/io/bad is refused with one clear line. A case is a file and a line in bad_files.json.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "io/gguf.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "support/golden.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

void open_file(const std::string& path, TensorData data) {
  if (fs::path(path).extension() == ".gguf") {
    GgufFile file(path, data);
  } else {
    SafetensorsFile file(path, data);
  }
}

}  // namespace

TEST_CASE("bad files: each is refused with a line that names the file and what is wrong") {
  const fs::path folder = test::golden_dir() / "io";
  std::set<std::string> listed;
  for (const Json& bad : read_json_file((folder / "bad_files.json").string())) {
    const std::string file = bad.at("file").get<std::string>(), what = bad.at("what").get<std::string>();
    CAPTURE(file);
    CAPTURE(what);
    listed.insert(file);
    const std::string path = (folder / "bad" / file).string();
    const std::string message = test::bad_file_message([&] { open_file(path, TensorData::required); });
    CAPTURE(message);
    CHECK(message.starts_with(path + ": "));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < path.size() + 300);
    for (const Json& word : bad.at("words"))
      CHECK_MESSAGE(message.find(word.get<std::string>()) != std::string::npos, word);
  }
  for (const auto& entry : fs::directory_iterator(folder / "bad"))
    CHECK(listed.count(entry.path().filename().string()) == 1);
  CHECK(listed.size() > 90);
}

TEST_CASE("bad files: every truncation of a good file is refused, and without its data accepted for planning") {
  for (const char* name : {"every_dtype.safetensors", "every_type.gguf"}) {
    CAPTURE(name);
    const std::string good = test::read_whole_file(test::golden_dir() / "io" / name);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(good));
    const bool is_gguf = std::string_view(name).ends_with(".gguf");
    auto parse = [&](size_t size, TensorData data) {
      return is_gguf ? parse_gguf(bytes.first(size), name, data).tensors
                     : parse_safetensors(bytes.first(size), name, data).tensors;
    };
    size_t end = 0, shortest_header = 0;  // of the last tensor: padding may follow it
    for (const StoredTensor& t : parse(good.size(), TensorData::required)) {
      end = std::max(end, static_cast<size_t>(t.data.data() + t.data.size() - bytes.data()));
    }
    for (size_t size = 0; size < end; ++size) {
      CAPTURE(size);
      CHECK(test::bad_file_message([&] { parse(size, TensorData::required); }) != "");
      const bool accepted = test::bad_file_message([&] { parse(size, TensorData::may_be_absent); }).empty();
      if (accepted && shortest_header == 0) shortest_header = size;
      CHECK(accepted == (shortest_header != 0));  // from the end of the header on, every length will do
    }
    CHECK(shortest_header > 0);
  }
}

}  // namespace sluice
