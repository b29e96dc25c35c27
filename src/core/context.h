// What every op is given: where it runs, where its memory comes from, and the threads.
#pragma once

#include "core/arena.h"
#include "core/thread_pool.h"

namespace sluice {

// The instruction sets the CPU kernels are compiled for; chosen once, at start.
enum class Isa : uint8_t { avx2, avx512 };

// The best of this machine, or what the environment variable SLUICE_ISA (avx2, avx512) asks for.
// Throws Error(device) when the CPU has no AVX2 and FMA, Error(bad_config) for another value.
Isa detect_isa();

struct Context {
  Arena& arena;
  ThreadPool& pool;
  Device device = Device::cpu();
  Isa isa = detect_isa();

  // True while a plan is being priced: kernels take their scratch and return.
  bool counting() const { return arena.is_counting(); }
};

}  // namespace sluice
