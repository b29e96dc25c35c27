// The test cases that SLUICE_TEST_DEVICE=cuda leaves out, and why. A comma would end a pattern: * stands for it.
#pragma once

namespace sluice::test {

struct NotOnCuda {
  const char* name;  // a pattern of doctest's
  const char* reason;
};

inline constexpr NotOnCuda not_on_cuda[] = {
    {"gemm:*", "the matrix product of the CPU backend"},
    {"attention schedule:*", "the CPU backend's order of work"},
    {"attention turns:*", "the CPU backend's order of work"},
    {"*the complex step*", "the reference alone"},
    {"quant: the reference *", "the reference alone"},
    {"quant: no kernel reads past the end of a mapped file", "a guard page is memory that no device reads"},
};

}  // namespace sluice::test
