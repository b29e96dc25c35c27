// Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
//
// Every number is a pure function of (seed, stream, index), so that recomputation draws the same dropout mask and a
// resumed run continues the same sequence. No state.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

inline std::array<uint32_t, 4> philox(uint64_t seed, std::array<uint32_t, 4> counter) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ULL * counter[0], p1 = 0xCD9E8D57ULL * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return counter;
}

// Number `index` of a stream: 32 uniform bits.
inline uint32_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t block = index / 4;
  const auto words = philox(seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
  return words[index % 4];
}

// Uniform in [0, 1), 24 bits, exact in float32.
inline float random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return static_cast<float>(random_bits(seed, stream, index) >> 8) * 0x1p-24F;
}

// A stream number from names, so that two uses never share one: FNV-1a.
constexpr uint64_t stream_of(const char* name, uint64_t a = 0, uint64_t b = 0) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (; *name != '\0'; ++name) h = (h ^ static_cast<uint8_t>(*name)) * 0x100000001b3ULL;
  for (uint64_t v : {a, b}) {
    for (int i = 0; i < 8; ++i) h = (h ^ ((v >> (8 * i)) & 0xffU)) * 0x100000001b3ULL;
  }
  return h;
}

}  // namespace sluice
