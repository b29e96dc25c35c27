#include "io/json_file.h"

#include <array>
#include <filesystem>
#include <set>
#include <string>

#include "io/file_error.h"
#include "io/mmap.h"

namespace sluice {
namespace {

constexpr size_t max_json_bytes = 16 << 20;
constexpr int max_depth = 64;
constexpr size_t max_keys = 20000;

// nlohmann's text "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error …" without its tag.
std::string without_tag(std::string_view message) {
  const size_t end = message.find("] ");
  if (!message.empty() && message[0] == '[' && end != std::string_view::npos) message.remove_prefix(end + 2);
  return printable(message, 200);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view name) {
  if (text.size() > max_json_bytes) {
    bad_file(name, "holds " + format_bytes(text.size()) + " of JSON, at most 16 MiB is read; is it the right file?");
  }
  std::array<std::set<std::string>, max_depth + 2> keys;  // of the open object at each depth
  auto guard = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= max_depth) bad_file(name, "JSON nests deeper than 64 levels; is it the right file?");
      keys[level + 1].clear();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[level].insert(key).second)
        bad_file(name, "the key \"" + printable(key) + "\" stands twice in one JSON object; keep one of them");
      if (keys[level].size() > max_keys)
        bad_file(name, "a JSON object has more than 20000 keys; is it the right file?");
    }
    return true;
  };
  try {
    return Json::parse(text, guard);
  } catch (const nlohmann::json::exception& e) {
    bad_file(name, "not valid JSON: " + without_tag(e.what()) + "; download or repair the file");
  }
}

Json parse_json_line(std::string_view text) {
  return Json::parse(text, [](int depth, Json::parse_event_t event, Json&) {
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    check(!opens || depth < max_depth, ErrorCode::bad_file, "JSON nests deeper than 64 levels");
    return true;
  });
}

Json read_json_file(const std::string& path) {
  const MappedFile file(path);
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.size()}, path);
}

std::optional<Json> read_json_file_if_present(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return std::nullopt;
  return read_json_file(path);
}

}  // namespace sluice
