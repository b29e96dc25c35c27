// Memory as the operating system counts it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace sluice {

struct ProcessMemory {
  int64_t anonymous_bytes = 0;  // RssAnon now
  int64_t peak_bytes = 0;       // VmHWM, mapped files included
  int64_t mapped_bytes = 0;     // RssFile now
};
ProcessMemory process_memory();

// What this process may still take without swapping: MemAvailable of the machine, and not more than its control groups (a container's limit)
// leave. 0 where the system does not say. `root`: where /proc and /sys are, for tests.
int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace sluice
