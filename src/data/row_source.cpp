#include "data/row_source.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "data/row_sources.h"
#include "io/file_kind.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

constexpr std::array<const char*, 6> endings = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"};
constexpr std::array<const char*, 3> packings = {"", ".gz", ".zst"};

bool has_ending(const std::string& name) {
  return std::any_of(packings.begin(), packings.end(), [&](const std::string& packing) {
    return std::any_of(endings.begin(), endings.end(), [&](const char* end) { return name.ends_with(end + packing); });
  });
}

// The name without what says that it is packed.
std::string unpacked(std::string path) {
  for (const char* end : {".gz", ".zst"}) {
    if (path.ends_with(end)) path.resize(path.size() - std::string_view(end).size());
  }
  return path;
}

// What lies beside a file that is not there: rows under another name, or data of another kind.
std::string beside(const fs::path& path) {
  std::vector<std::string> rows, others;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    const std::string extension = entry.path().extension().string();
    if (has_ending(entry.path().filename().string())) rows.push_back(entry.path().string());
    else if (extension == ".arrow" || extension == ".zip") others.push_back(entry.path().string());
  }
  std::sort(rows.begin(), rows.end());
  std::sort(others.begin(), others.end());
  if (!rows.empty()) return fmt::format("; did you mean {}?", rows.front());
  if (others.empty()) return "";
  const auto kind = kind_of_file(others.front());
  return fmt::format("; {} is there{}", others.front(),
                     kind ? fmt::format(", {}: {}", kind->name, kind->remedy) : std::string());
}

void check_path(const std::string& path) {
  if (fs::is_directory(path)) {
    const std::string kind = kind_of_folder(path);
    throw Error(ErrorCode::bad_file,
                kind.empty() ? fmt::format("{} is a folder, needed a data file{}", path, beside(fs::path(path) / ""))
                             : fmt::format("{} {}", path, kind));
  }
  check(std::ifstream(path, std::ios::binary).good(), ErrorCode::bad_file,
        fmt::format("{} cannot be read; give the path of a data file (JSON lines, a JSON list, CSV, Parquet){}", path,
                    fs::exists(path) ? "" : beside(path)));
}

}  // namespace

std::unique_ptr<RowSource> open_rows(const std::string& path) {
  check_path(path);
  ByteScanner bytes(open_bytes(path));
  const std::string name = unpacked(path);
  if (name.ends_with(".csv")) return table(std::move(bytes), ',');
  if (name.ends_with(".tsv")) return table(std::move(bytes), '\t');
  const std::string_view begin = bytes.window();
  if (begin.starts_with("PAR1") && name == path) return parquet_rows(path);
  switch (shape_of_rows(begin, name.ends_with(".json"))) {
    case RowShape::list: return json_list(std::move(bytes));
    case RowShape::commas: return table(std::move(bytes), ',');
    case RowShape::tabs: return table(std::move(bytes), '\t');
    case RowShape::lines: break;
  }
  const auto kind = kind_of_bytes(begin);
  check(!kind, ErrorCode::bad_file,
        kind ? fmt::format("{} is {}, needed JSON lines, a JSON list or CSV{}", path, kind->name,
                           kind->remedy.empty() ? "" : "; " + kind->remedy)
             : std::string());
  return json_lines(std::move(bytes));
}

std::string file_of_part(const std::string& folder, const std::string& part) {
  std::vector<std::string> found;
  for (const std::string& name :
       part == "valid" ? std::vector<std::string>{"valid", "validation"} : std::vector{part}) {
    for (const char* ending : endings) {
      for (const char* packing : packings) {
        const fs::path path = fs::path(folder) / (name + ending + packing);
        if (fs::exists(path)) found.push_back(path.string());
      }
    }
  }
  check(found.size() < 2, ErrorCode::bad_file,
        found.size() < 2 ? std::string()
                         : fmt::format("{} and {} are both there; keep one file of {}", found[0], found[1], part));
  return found.empty() ? "" : found.front();
}

}  // namespace sluice
