#include "core/system_memory.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "core/control_groups.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

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
  const ControlGroups groups = control_groups("memory", root);
  for (const fs::path& group : groups.version_1) at_most(left_in(group, version_1));
  for (const fs::path& group : groups.version_2) at_most(left_in(group, version_2));
  return available.value_or(0);
}

}  // namespace sluice
