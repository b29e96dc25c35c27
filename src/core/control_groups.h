// What the control groups around this process (a container's limits, a job's) say. Version 1 and version 2, nested groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct ControlGroups {
  std::vector<std::filesystem::path> version_1, version_2;  // folders of the groups, each before the one around it
};

// The groups of a controller ("memory", "cpu") that hold this process. `root`: where /proc and /sys are, for tests.
ControlGroups control_groups(const std::string& controller, const std::filesystem::path& root = "/");

// The first number of a file, or of its line that begins with `key`. None where there is no such file, line or number ("max").
std::optional<int64_t> number_in(const std::filesystem::path& path, const std::string& key = "");

// Cores' worth of time that the groups grant, rounded up to whole cores; none where they grant all.
std::optional<int> quota_of_cores(const std::filesystem::path& root = "/");

}  // namespace sluice
