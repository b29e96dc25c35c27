#include "core/context.h"

#include <cstdlib>
#include <string>

namespace sluice {

namespace {

// Each CPU with AVX2 has F16C too; clang 14 cannot ask for it.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

Isa detect_isa() {
  check(has_avx2(), ErrorCode::device, "this CPU has no AVX2 and FMA; sluice needs them");
  const char* wanted = std::getenv("SLUICE_ISA");
  if (wanted == nullptr || *wanted == '\0') return has_avx512() ? Isa::avx512 : Isa::avx2;
  const std::string name = wanted;
  if (name == "avx2") return Isa::avx2;
  check(name == "avx512", ErrorCode::bad_config, "SLUICE_ISA is '" + name + "'; it may be avx2 or avx512");
  check(has_avx512(), ErrorCode::device, "SLUICE_ISA is avx512, but this CPU has none; unset it");
  return Isa::avx512;
}

}  // namespace sluice
