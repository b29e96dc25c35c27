// The backends a test runs on: every instruction set of this CPU.
#pragma once

#include <memory>
#include <vector>

#include "core/context.h"

namespace sluice::test {

struct TestContext {
  Arena arena;
  ThreadPool pool;
  Context ctx;
  explicit TestContext(Isa isa, int threads = 2, int64_t bytes = 64 << 20)
      : arena(Arena::allocate(Device::cpu(), bytes)), pool(threads), ctx{.arena = arena, .pool = pool, .isa = isa} {}
  operator Context&() { return ctx; }
};

inline std::vector<Isa> built_isas() {
  std::vector<Isa> isas = {Isa::avx2};
  if (detect_isa() == Isa::avx512) isas.push_back(Isa::avx512);
  return isas;
}

}  // namespace sluice::test
