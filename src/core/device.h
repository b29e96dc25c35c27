// A CUDA device as the rest of the program sees it: its memory, and waiting for it. All through libsluice_cuda.so, opened at first use; each
// function throws Error(device) where it cannot be opened or CUDA refuses, saying what was being done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/context.h"

namespace sluice {

// "cpu", "cuda" or "cuda:1". Throws Error(bad_config) for anything else; asks no driver.
Device parse_device(const std::string& name);

struct DeviceInfo {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int num_multiprocessors = 0;
  int64_t total_bytes = 0, free_bytes = 0;
  int driver_version = 0, runtime_version = 0;  // 13000 is 13.0
};
// All that the driver shows. Empty where there is a backend and no device.
std::vector<DeviceInfo> cuda_devices();

// Whether the driver shows it; the CPU is always here. Without a CUDA device a counting arena still prices a step, with the kernels of compute
// capability 9.0 (H100, H200); everything else throws.
bool is_here(Device device);

struct DeviceMemory {
  int64_t free_bytes = 0, total_bytes = 0;  // as the driver counts them, of all processes
};
DeviceMemory memory_of(Device device);

// Plain allocations; freed by device_free. Throws Error(out_of_memory) naming the size.
std::byte* device_allocate(Device device, int64_t bytes);
void device_free(Device device, std::byte* memory) noexcept;
// Host memory that the device reads and writes at full speed; the same count frees it.
std::byte* pinned_allocate(int64_t bytes);
void pinned_free(std::byte* memory, int64_t bytes) noexcept;

// Waits for all work given to the device; throws Error(device) for what failed in it.
void synchronize(Device device);

// Time between two points of the device's stream.
class DeviceTimer {
 public:
  explicit DeviceTimer(Device device);
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  void start();
  double stop();  // milliseconds since start(), once the device has come here

 private:
  Device device_;
  void* events_ = nullptr;
};

// Gives what ops launch in its lifetime to the device at once, as one CUDA graph, where launching one by one would take longer than small
// kernels run: a launch costs the host several microseconds, a captured one about a third (bench/results). The next graph of the same nodes
// updates an earlier one rather than being built. Bits do not depend on it.
//
//   GraphCapture graph(ctx, num_tokens);
//   layer.forward(…);  // no copy from or to pageable memory, nothing that waits
//   graph.launch();
//
// Does nothing on the CPU, in a counting arena, above most_tokens (kernels outlast their launches, and a graph would grow with the tiles), and
// with SLUICE_CUDA_GRAPH=0 or SLUICE_CUDA_PROFILE=1 in the environment. One at a time on a device, and no other thread
// may launch there meanwhile. Without launch() what was captured is dropped.
class GraphCapture {
 public:
  static constexpr int64_t most_tokens = 4096;
  GraphCapture(const Context& ctx, int64_t num_tokens);
  ~GraphCapture();
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;
  void launch();

 private:
  const Context& ctx_;
  bool active_;
};

// Normal-like random numbers of standard deviation `scale`, for benchmarks: f32 or bf16.
void device_random(Device device, void* memory, DType dtype, int64_t count, uint64_t seed, float scale);

}  // namespace sluice
