// What the benchmarks of elementwise ops run on: all threads, and tensors of a plain pattern.
#pragma once

#include "core/context.h"

namespace sluice::bench {

struct Setting {
  Arena data = Arena::allocate(Device::cpu(), int64_t{128} << 20);
  Arena arena = Arena::allocate(Device::cpu(), int64_t{1} << 20);
  ThreadPool pool{ThreadPool::default_threads()};
  Context ctx{.arena = arena, .pool = pool};

  Tensor tensor(DType dtype, Shape shape) {
    Tensor t = data.tensor(dtype, shape);
    for (int64_t i = 0; i < t.numel(); ++i) {
      const float value = static_cast<float>(i % 977 - 488) / 256;
      if (dtype == DType::bf16) t.as<bf16>()[i] = bf16(value);
      else t.as<float>()[i] = value;
    }
    return t;
  }
};

}  // namespace sluice::bench
