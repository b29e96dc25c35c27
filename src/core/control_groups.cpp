#include "core/control_groups.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace sluice {

namespace fs = std::filesystem;

namespace {

// The group at `path` below `top` and those around it; a container names its own, or sees it at the top.
void walk(std::vector<fs::path>& groups, const fs::path& top, std::string_view path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  for (fs::path group = path;; group = group.parent_path()) {
    groups.push_back(top / group);
    if (group.empty()) break;
  }
}

// Time over period of a group; both are numbers, or there is no limit (-1, "max").
std::optional<int> cores(std::optional<int64_t> time, std::optional<int64_t> period) {
  if (!time || !period || *time <= 0 || *period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp<int64_t>((*time - 1) / *period + 1, 1, 1 << 20));
}

// "50000 100000", or "max 100000".
std::optional<int> cores_of_version_2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  int64_t time = 0, period = 0;
  if (!(file >> time >> period)) return std::nullopt;
  return cores(time, period);
}

}  // namespace

ControlGroups control_groups(const std::string& controller, const fs::path& root) {
  ControlGroups groups;
  const fs::path control = root / "sys/fs/cgroup";
  walk(groups.version_1, control / controller, "");
  std::ifstream lines(root / "proc/self/cgroup");  // "0::/path", or of version 1 "4:cpu,cpuacct:/path"
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (line.starts_with("0::")) {
      walk(groups.version_2, control, path);
    } else if (("," + names + ",").find("," + controller + ",") != std::string::npos) {
      for (const std::string& folder : {controller, names}) walk(groups.version_1, control / folder, path);
    }
  }
  return groups;
}

std::optional<int64_t> number_in(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; key.empty() || file >> word;) {
    if (!key.empty() && word != key) continue;
    int64_t value = 0;
    if (file >> value) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<int> quota_of_cores(const fs::path& root) {
  std::optional<int> least;
  const auto at_most = [&](std::optional<int> found) {
    if (found) least = std::min(least.value_or(*found), *found);
  };
  const ControlGroups groups = control_groups("cpu", root);
  for (const fs::path& group : groups.version_1)
    at_most(cores(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us")));
  for (const fs::path& group : groups.version_2) at_most(cores_of_version_2(group));
  return least;
}

}  // namespace sluice
