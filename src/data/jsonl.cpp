#include "data/jsonl.h"

#include <algorithm>

#include "io/file_kind.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

// What lies beside a file that is not there: rows under another name, or data of another kind.
std::string beside(const fs::path& path) {
  std::vector<std::string> lines, others;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".jsonl") lines.push_back(entry.path().string());
    if (extension == ".parquet" || extension == ".arrow" || extension == ".csv" || extension == ".gz" ||
        extension == ".zst" || extension == ".json")
      others.push_back(entry.path().string());
  }
  std::sort(lines.begin(), lines.end());
  std::sort(others.begin(), others.end());
  if (!lines.empty()) return fmt::format("; did you mean {}?", lines.front());
  if (others.empty()) return "";
  const auto kind = kind_of_file(others.front());
  return fmt::format("; {} is there{}", others.front(),
                     kind ? fmt::format(", {}: {}", kind->name, kind->remedy) : std::string());
}

}  // namespace

void check_jsonl(const std::string& path) {
  if (fs::is_directory(path)) {
    const std::string kind = kind_of_folder(path);
    throw Error(ErrorCode::bad_file,
                kind.empty() ? fmt::format("{} is a folder, needed a .jsonl file{}", path, beside(fs::path(path) / ""))
                             : fmt::format("{} {}", path, kind));
  }
  check(std::ifstream(path, std::ios::binary).good(), ErrorCode::bad_file,
        fmt::format("{} cannot be read; give the path of a .jsonl file{}", path, fs::exists(path) ? "" : beside(path)));
  const auto kind = kind_of_file(path);
  check(!kind, ErrorCode::bad_file,
        kind ? fmt::format("{} is {}, needed JSON lines{}", path, kind->name,
                           kind->remedy.empty() ? "" : "; " + kind->remedy)
             : std::string());
}

}  // namespace sluice
