#include "io/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include "io/file_error.h"

namespace sluice {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

namespace {

constexpr size_t looked_at = 4096;

constexpr const char* to_lines =
    "turn it into JSON lines, one object a line (pandas: to_json(orient='records', lines=True))";
constexpr const char* to_safetensors =
    "convert it to safetensors (safe_open and save_file of the Python package, or save_pretrained)";

struct Magic {
  std::string_view bytes;
  const char *name, *remedy;
};

const std::array<Magic, 17>& magics() {
  static const std::array<Magic, 17> list = {{
      {"PAR1"sv, "a Parquet file", to_lines},
      {"ARROW1"sv, "an Arrow file", to_lines},
      {"\xFF\xFF\xFF\xFF"sv, "an Arrow stream, as datasets' save_to_disk writes it", to_lines},
      {"\x1F\x8B"sv, "a gzip file", "unpack it with gunzip"},
      {"\x28\xB5\x2F\xFD"sv, "a Zstandard file", "unpack it with unzstd"},
      {"\xFD\x37zXZ\0"sv, "an xz file", "unpack it with unxz"},
      {"BZh"sv, "a bzip2 file", "unpack it with bunzip2"},
      {"SQLite format 3\0"sv, "an SQLite database", to_lines},
      {"\x89HDF"sv, "an HDF5 file", ""},
      {"\x93NUMPY"sv, "a NumPy array", ""},
      {"%PDF"sv, "a PDF", ""},
      {"GGUF"sv, "a GGUF file", ""},
      {"version https://git-lfs"sv, "a Git LFS pointer, not the file itself", "run git lfs pull"},
      {"<!DOCTYPE"sv, "an HTML page", "a download went to a page for people: fetch the file itself"},
      {"<html"sv, "an HTML page", "a download went to a page for people: fetch the file itself"},
      {"Obj\x01"sv, "an Avro file", to_lines},
      {"ORC"sv, "an ORC file", to_lines},
  }};
  return list;
}

std::string first_bytes(const std::string& path) {
  std::string bytes(looked_at, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

std::optional<FileKind> kind_of_python(std::string_view bytes) {
  if (bytes.starts_with("PK\x03\x04")) {
    if (bytes.find("data.pkl") != std::string_view::npos) return FileKind{"a PyTorch file", to_safetensors};
    return FileKind{"a ZIP archive", "unpack it"};
  }
  const bool pickle = bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
  if (pickle) return FileKind{"a Python pickle", to_safetensors};
  return std::nullopt;
}

// Whether a first line with separators is followed by one that has as many or, in quotes, more: a line of prose is no table.
bool is_table(std::string_view text, char separator) {
  const auto separators_of_line = [&] {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.find_first_not_of("\r\n", end), text.size()));
    return std::count(line.begin(), line.end(), separator);
  };
  const auto header = separators_of_line();
  return header > 0 && !text.empty() && separators_of_line() >= header;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) names.insert(entry.path().filename().string());
  return names;
}

std::string joined(const std::string& path, const std::string& name) {
  return printable((fs::path(path) / name).string(), 300);
}

}  // namespace

std::optional<FileKind> kind_of_bytes(std::string_view bytes) {
  bytes = bytes.substr(0, looked_at);
  for (const Magic& magic : magics()) {
    if (bytes.starts_with(magic.bytes)) return FileKind{magic.name, magic.remedy};
  }
  if (auto kind = kind_of_python(bytes)) return kind;
  // safetensors: eight bytes with the length of the JSON that follows
  if (bytes.size() > 9 && bytes[8] == '{' && bytes.substr(5, 3) == "\0\0\0"sv)
    return FileKind{"a safetensors file", ""};
  return std::nullopt;
}

std::optional<FileKind> kind_of_file(const std::string& path) { return kind_of_bytes(first_bytes(path)); }

RowShape shape_of_rows(std::string_view text, bool called_json) {
  constexpr std::string_view space = " \t\r\n";
  text = text.substr(0, looked_at);
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos || text.find('\0') != std::string_view::npos) return RowShape::lines;
  if (text[begin] == '[') {
    const size_t next = text.find_first_not_of(space, begin + 1);
    const bool of_objects = next == std::string_view::npos || text[next] == '{' || text[next] == ']';
    return of_objects || called_json ? RowShape::list : RowShape::lines;
  }
  if (text[begin] == '{') return RowShape::lines;
  if (is_table(text.substr(begin), '\t')) return RowShape::tabs;
  return is_table(text.substr(begin), ',') ? RowShape::commas : RowShape::lines;
}

std::string kind_of_folder(const std::string& path) {
  const std::set<std::string> names = names_in(path);
  if (names.count("snapshots") != 0) {
    const std::set<std::string> snapshots = names_in(fs::path(path) / "snapshots");
    if (snapshots.empty()) return "is a folder of the Hugging Face cache without a snapshot; the download did not end";
    return fmt::format("is a folder of the Hugging Face cache; did you mean {}?",
                       joined(path, "snapshots/" + *snapshots.begin()));
  }
  for (const std::string& name : names) {
    if (name.starts_with("models--"))
      return fmt::format("is a Hugging Face cache of several models; give the snapshot of one, in {}",
                         joined(path, name));
  }
  if (names.count("config.resolved.yaml") != 0 || names.count("best") + names.count("last") == 2) {
    for (const char* name : {"best", "last"}) {
      if (names.count(name) != 0)
        return fmt::format("is the folder of a run, which holds its adapters; did you mean {}?", joined(path, name));
    }
    return "is the folder of a run that has saved no adapter yet";
  }
  std::string latest;
  int64_t latest_step = -1;
  for (const std::string& name : names) {  // checkpoint-500 of Hugging Face's trainer, step-0000100 of ours
    const size_t dash = name.find_last_of('-');
    if (!name.starts_with("checkpoint-") && !name.starts_with("step-")) continue;
    const int64_t step = std::strtoll(name.c_str() + dash + 1, nullptr, 10);
    if (step > latest_step && names_in(fs::path(path) / name).count("adapter_config.json") != 0)
      latest = name, latest_step = step;
  }
  if (!latest.empty()) return fmt::format("is the folder of a run; did you mean {}?", joined(path, latest));
  if (names.count("dataset_info.json") != 0 || names.count("state.json") + names.count("dataset_dict.json") == 2)
    return "is a data set that Python's datasets saved; save it as JSON lines (to_json)";
  return "";
}

}  // namespace sluice
