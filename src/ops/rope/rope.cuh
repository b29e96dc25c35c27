// The rotation of one pair, with one order of rounding in every CUDA kernel that rotates.
#pragma once

namespace sluice::cuda {

struct Turned {
  float first, second;
};
__device__ inline Turned turn(float a, float b, float cosine, float sine) {
  return {fmaf(a, cosine, -__fmul_rn(b, sine)), fmaf(b, cosine, __fmul_rn(a, sine))};
}

}  // namespace sluice::cuda
