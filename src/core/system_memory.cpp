#include "core/system_memory.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

namespace fs = std::filesystem;

namespace {

// The first number of a file, or of its line that begins with `key`. None where there is no such file, line or number ("max").
std::optional<int64_t> number_in(const fs::path& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string word; key.empty() || file >> word;) {
    if (!key.empty() && word != key) continue;
    int64_t value = 0;
    if (file >> value) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char *limit, *usage;
  // Lines of memory.stat: pages of files, which the kernel drops before it refuses memory.
  std::array<const char*, 2> droppable;
};
constexpr GroupFiles version_1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr GroupFiles version_2 = {"memory.max", "memory.current", {"inactive_file", "active_file"}};

std::optional<int64_t> left_in(const fs::path& group, const GroupFiles& files) {
  const auto most = number_in(group / files.limit), used = number_in(group / files.usage);
  if (!most || !used) return std::nullopt;
  int64_t left = *most - *used;
  for (const char* line : files.droppable) left += number_in(group / "memory.stat", line).value_or(0);
  return std::max<int64_t>(0, left);
}

}  // namespace

ProcessMemory process_memory() {
  const auto kib = [](const char* key) { return number_in("/proc/self/status", key).value_or(0) * 1024; };
  return {.anonymous_bytes = kib("RssAnon:"), .peak_bytes = kib("VmHWM:"), .mapped_bytes = kib("RssFile:")};
}

int64_t available_memory(const fs::path& root) {
  std::optional<int64_t> available = number_in(root / "proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const auto at_most = [&](std::optional<int64_t> left) {
    if (left) available = std::min(available.value_or(*left), *left);
  };
  const fs::path control = root / "sys/fs/cgroup";
  // A process' group and those around it; a container names its own, or sees it at the top.
  const auto walk = [&](const fs::path& top, std::string_view path, const GroupFiles& files) {
    while (path.starts_with('/')) path.remove_prefix(1);
    for (fs::path group = path;; group = group.parent_path()) {
      at_most(left_in(top / group, files));
      if (group.empty()) break;
    }
  };
  walk(control / "memory", "", version_1);
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/path", or of version 1 "4:memory:/path"
  for (std::string line; std::getline(groups, line);) {
    const size_t second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos) continue;
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (line.starts_with("0::")) walk(control, path, version_2);
    else if (("," + line.substr(line.find(':') + 1, second - line.find(':') - 1) + ",").find(",memory,") !=
             std::string::npos)
      walk(control / "memory", path, version_1);
  }
  return available.value_or(0);
}

}  // namespace sluice
