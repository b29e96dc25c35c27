#include "core/system_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

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

// What one control group leaves. Pages of files that were not read of late count as free: the kernel drops them first.
std::optional<int64_t> left_in(const fs::path& group, const char* limit, const char* usage, const char* droppable) {
  const auto most = number_in(group / limit), used = number_in(group / usage);
  if (!most || !used) return std::nullopt;
  return std::max<int64_t>(0, *most - *used + number_in(group / "memory.stat", droppable).value_or(0));
}

}  // namespace

ProcessMemory process_memory() {
  const auto kib = [](const char* key) { return number_in("/proc/self/status", key).value_or(0) * 1024; };
  return {.anonymous_bytes = kib("RssAnon:"), .peak_bytes = kib("VmHWM:"), .mapped_bytes = kib("RssFile:")};
}

int64_t available_memory(const fs::path& root) {
  int64_t available = number_in(root / "proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  const auto at_most = [&](std::optional<int64_t> left) {
    if (left) available = std::min(available, *left);
  };
  // Version 2: the process' group and those around it. Inside a container the path is "/" and names the container's own.
  const fs::path control = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    fs::path group = line.substr(4);
    for (;; group = group.parent_path()) {
      at_most(left_in(control / group, "memory.max", "memory.current", "inactive_file"));
      if (group.empty()) break;
    }
  }
  // Version 1, as a container sees it.
  at_most(left_in(control / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
  return available;
}

}  // namespace sluice
