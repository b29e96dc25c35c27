// The backends a test runs on: every instruction set of this CPU, or with SLUICE_TEST_DEVICE=cuda the CUDA device.
//
// In CUDA mode all memory of a test, Buffer, std::vector and arenas, is host memory that the device reads and writes
// (support/device_heap.h), and kernels have ended when an op returns; so a test is written once, for the CPU.
#pragma once

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/context.h"

namespace sluice::test {

inline bool on_cuda() {
  static const bool cuda = [] {
    const char* device = std::getenv("SLUICE_TEST_DEVICE");
    return device != nullptr && std::string_view(device) == "cuda";
  }();
  return cuda;
}

inline Device test_device() { return on_cuda() ? Device::cuda() : Device::cpu(); }

// An arena whose memory the test may read, on whatever device.
inline Arena test_arena(int64_t bytes) {
  return on_cuda() ? Arena::pinned(bytes) : Arena::allocate(Device::cpu(), bytes);
}

// Pinned arenas, kept from one TestContext to the next: to pin memory takes longer than most tests.
class PinnedArenas {
 public:
  static constexpr int64_t bytes_each = 256 << 20;
  static Arena take() {
    const std::scoped_lock lock(mutex_);
    if (spare_.empty()) return Arena::pinned(bytes_each);
    Arena arena = std::move(spare_.back());
    spare_.pop_back();
    arena.release(0);
    arena.reset_peak();
    return arena;
  }
  static void give(Arena arena) {
    const std::scoped_lock lock(mutex_);
    spare_.push_back(std::move(arena));
  }

 private:
  inline static std::mutex mutex_;
  inline static std::vector<Arena> spare_;
};

// `bytes` and `isa` are the CPU's; a CUDA context has an arena large enough for all tests.
struct TestContext {
  Arena arena;
  ThreadPool pool;
  Context ctx;
  explicit TestContext(Isa isa, int threads = 2, int64_t bytes = 64 << 20)
      : arena(on_cuda() ? PinnedArenas::take() : Arena::allocate(Device::cpu(), bytes)),
        pool(threads),
        ctx{.arena = arena, .pool = pool, .device = test_device(), .isa = isa} {}
  ~TestContext() {
    if (on_cuda()) PinnedArenas::give(std::move(arena));
  }
  TestContext(const TestContext&) = delete;
  TestContext& operator=(const TestContext&) = delete;
  operator Context&() { return ctx; }
};

inline std::vector<Isa> built_isas() {
  if (on_cuda()) return {Isa::avx2};  // one run, whatever it is called
  std::vector<Isa> isas = {Isa::avx2};
  if (detect_isa() == Isa::avx512) isas.push_back(Isa::avx512);
  return isas;
}

}  // namespace sluice::test
