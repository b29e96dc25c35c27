// Files and folders that people give in place of others. The first bytes are those of the formats' own specifications.
#include "io/file_kind.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "io/weight_source.h"

namespace sluice {

namespace fs = std::filesystem;
using namespace std::string_literals;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("sluice_kinds_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name, const std::string& bytes) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
  std::string kind_of(const std::string& bytes) const {
    const auto kind = kind_of_file(file("file", bytes));
    return kind ? kind->name : "";
  }
};

std::string refusal_of(const std::string& path) {
  try {
    open_model(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("file_kind: a file is known by its first bytes, whatever its name") {
  const Folder folder;
  CHECK(folder.kind_of("PAR1\x15\x04"s) == "a Parquet file");
  CHECK(folder.kind_of("ARROW1\0\0"s) == "an Arrow file");
  CHECK(folder.kind_of("\xFF\xFF\xFF\xFF\x10\0\0\0"s) == "an Arrow stream, as datasets' save_to_disk writes it");
  CHECK(folder.kind_of("\x1F\x8B\x08\0"s) == "a gzip file");
  CHECK(folder.kind_of("\x28\xB5\x2F\xFD\x04"s) == "a Zstandard file");
  CHECK(folder.kind_of("PK\x03\x04\x14\0\0\0"s) == "a ZIP archive");
  CHECK(folder.kind_of("PK\x03\x04\0\0\0\0archive/data.pkl"s) == "a PyTorch file");
  CHECK(folder.kind_of("\x80\x02}q\x01"s) == "a Python pickle");
  CHECK(folder.kind_of("GGUF\x03\0\0\0"s) == "a GGUF file");
  CHECK(folder.kind_of("\x08\0\0\0\0\0\0\0{\"a\":{}}"s) == "a safetensors file");
  CHECK(folder.kind_of("version https://git-lfs.github.com/spec/v1\noid"s) == "a Git LFS pointer, not the file itself");
  for (const char* rows : {"{\"prompt\": \"a,b\"}\n", "\xEF\xBB\xBF{\"a\": 1}\n", "\n\n{}\n", "", "[1, 2]\n", "words",
                           "prompt,completion\nq,a\n", "[\n  {\"prompt\": \"q\"}\n]\n"})
    CHECK(folder.kind_of(rows).empty());
  CHECK_FALSE(kind_of_file("no/such/file").has_value());
  CHECK_FALSE(kind_of_file(folder.path.string()).has_value());
}

TEST_CASE("file_kind: text is divided into rows as its beginning shows") {
  CHECK(shape_of_rows("prompt,completion\nq,a\n") == RowShape::commas);
  CHECK(shape_of_rows("prompt\tcompletion\nq\ta\n") == RowShape::tabs);
  CHECK(shape_of_rows("\xEF\xBB\xBF [\n  {\"prompt\": \"q\"}\n]\n") == RowShape::list);
  CHECK(shape_of_rows("[]") == RowShape::list);
  CHECK(shape_of_rows("[1, 2]") == RowShape::lines);
  CHECK(shape_of_rows("[1, 2]", true) == RowShape::list);
  for (const char* lines : {"{\"prompt\": \"a,b\"}\n{\"a,b\":1}", "", "words, and more\nand no more"})
    CHECK(shape_of_rows(lines) == RowShape::lines);
}

TEST_CASE("file_kind: folders that hold what was meant say where it is") {
  const Folder folder;
  const std::string path = folder.path.string();
  CHECK(kind_of_folder(path).empty());
  fs::create_directories(folder.path / "cache/models--org--name/snapshots");
  const std::string name = path + "/cache/models--org--name";
  CHECK(kind_of_folder(name) == "is a folder of the Hugging Face cache without a snapshot; the download did not end");
  CHECK(kind_of_folder(path + "/cache").find("cache of several models") != std::string::npos);
  fs::create_directories(folder.path / "cache/models--org--name/snapshots/1a2b");
  CHECK(kind_of_folder(name) == "is a folder of the Hugging Face cache; did you mean " + name + "/snapshots/1a2b?");
  folder.file("run/config.resolved.yaml", "");
  CHECK(kind_of_folder(path + "/run") == "is the folder of a run that has saved no adapter yet");
  fs::create_directories(folder.path / "run/last");
  CHECK(kind_of_folder(path + "/run").find("did you mean " + path + "/run/last?") != std::string::npos);
  fs::create_directories(folder.path / "run/best");
  CHECK(kind_of_folder(path + "/run").find("did you mean " + path + "/run/best?") != std::string::npos);
  folder.file("trl/checkpoint-90/adapter_config.json", "{}");
  folder.file("trl/checkpoint-500/adapter_config.json", "{}");
  CHECK(kind_of_folder(path + "/trl") == "is the folder of a run; did you mean " + path + "/trl/checkpoint-500?");
  folder.file("saved/dataset_info.json", "{}");
  CHECK(kind_of_folder(path + "/saved").find("datasets saved") != std::string::npos);
}

TEST_CASE("file_kind: a model that is something else is refused by what it is") {
  const Folder folder;
  CHECK(refusal_of(folder.file("pytorch_model.bin", "PK\x03\x04\0\0\0\0archive/data.pkl"s))
            .find("is a PyTorch file, needed a model's folder or a .gguf file; convert it to safetensors") !=
        std::string::npos);
  CHECK(
      refusal_of(folder.file("model.gguf", "version https://git-lfs.github.com/spec/v1\n")).find("run git lfs pull") !=
      std::string::npos);
  fs::create_directories(folder.path / "models--a--b/snapshots/77");
  CHECK(refusal_of((folder.path / "models--a--b").string()).find("did you mean") != std::string::npos);
}

}  // namespace sluice
