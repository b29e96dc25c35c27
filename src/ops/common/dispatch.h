// How an op reaches its backend. At the foot of an op's header:
//
//   SLUICE_BACKENDS(rmsnorm_forward, RmsNormForward)
//
// declares cpu_avx2::, cpu_avx512:: and cuda::rmsnorm_forward. A file *_cpu.cpp is compiled once for each CPU
// instruction set (ops/common/cpu_simd.h); `SLUICE_DISPATCH(ctx, rmsnorm_forward, args)` in the op's .cpp picks one,
// once per call. A missing CPU implementation is a link error. The CUDA backend is a library loaded on demand
// (core/cuda_library.h), so that one program starts on machines without CUDA.
//
// A backend function first takes its scratch from ctx.arena, then returns if ctx.counting().
#pragma once

#include "core/context.h"
#include "core/cuda_library.h"

#define SLUICE_BACKENDS(function, Args)          \
  namespace cpu_avx2 {                           \
  void function(Context& ctx, const Args& args); \
  }                                              \
  namespace cpu_avx512 {                         \
  void function(Context& ctx, const Args& args); \
  }                                              \
  namespace cuda {                               \
  void function(Context& ctx, const Args& args); \
  }

#define SLUICE_DISPATCH(ctx, function, args)                                         \
  do {                                                                               \
    if ((ctx).device.type == DeviceType::cuda) {                                     \
      static const auto entry = cuda_entry<std::decay_t<decltype(args)>>(#function); \
      CudaOp op((ctx), #function);                                                   \
      entry((ctx), (args));                                                          \
      op.done();                                                                     \
    } else if ((ctx).isa == Isa::avx512) {                                           \
      cpu_avx512::function((ctx), (args));                                           \
    } else {                                                                         \
      cpu_avx2::function((ctx), (args));                                             \
    }                                                                                \
  } while (false)
