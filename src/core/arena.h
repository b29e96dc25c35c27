// All memory of a run comes from arenas: a stack of bytes sized before the first step.
//
//   Arena planner = Arena::counting(Device::cpu());     // the same calls, no memory: prices a step
//   step(planner);  Arena arena = Arena::allocate(Device::cpu(), planner.peak());
//   { ArenaScope scratch(arena); Tensor h = scratch.tensor(DType::bf16, {N, F}); … }   // released at the brace
//
// A counting arena returns addresses that must not be read; kernels return before touching them
// (`if (ctx.counting()) return;`). One arena serves one thread. Throws Error(out_of_memory) when full.
#pragma once

#include <cstdint>
#include <memory>

#include "core/tensor.h"

namespace sluice {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  static Device cpu() { return {}; }
  static Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  bool operator==(const Device&) const = default;
};

class Arena {
 public:
  static constexpr int64_t alignment = 256;

  // Capacities are rounded up to whole units of `alignment`, as what is handed out is.
  static Arena counting(Device device);
  // On the CPU maps and touches `capacity_bytes`, so that what is planned is resident from the start; on a CUDA device one
  // plain allocation (core/device.h).
  static Arena allocate(Device device, int64_t capacity_bytes);
  // Host memory that a CUDA device reads and writes directly: what a step offloads, and staging.
  static Arena pinned(int64_t capacity_bytes);
  // Bytes taken from `whole`, to be handed out, given back and handed out again; counting if `whole` is. Must not outlive them.
  static Arena part_of(Arena& whole, int64_t capacity_bytes);

  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  Tensor tensor(DType dtype, Shape shape);
  std::byte* bytes(int64_t count);  // aligned to 256; count may be 0
  template <class T>
  T* array(int64_t count) {
    return reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  bool is_counting() const { return memory_ == nullptr; }
  Device device() const { return device_; }
  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }          // since construction or reset_peak()
  int64_t capacity() const { return capacity_; }  // 0 when counting
  void reset_peak() { peak_ = used_; }

  int64_t mark() const { return used_; }
  void release(int64_t mark) {
    SLUICE_ASSERT(mark <= used_);
    used_ = mark;
  }

 private:
  enum class Kind : uint8_t { mapped, device, pinned, part };
  struct Release {
    Kind kind = Kind::mapped;
    Device device;
    int64_t bytes = 0;
    void operator()(std::byte* p) const;
  };
  explicit Arena(Device device) : device_(device), memory_(nullptr, Release{}) {}

  Device device_;
  std::unique_ptr<std::byte, Release> memory_;
  int64_t capacity_ = 0, used_ = 0, peak_ = 0;
};

// Gives back what was taken inside a scope, last in, first out.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() {
    if (arena_.used() >= mark_) arena_.release(mark_);
  }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

  Tensor tensor(DType dtype, Shape shape) { return arena_.tensor(dtype, shape); }
  Tensor like(const Tensor& other) { return arena_.tensor(other.dtype, other.shape); }
  template <class T>
  T* array(int64_t count) {
    return arena_.array<T>(count);
  }

 private:
  Arena& arena_;
  int64_t mark_;
};

}  // namespace sluice
