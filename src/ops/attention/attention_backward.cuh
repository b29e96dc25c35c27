// The backward pass of attention on CUDA; shared by its plain, portable and Hopper kernels.
//
// In rounds with a bounded scratch: a round is a rectangle of (query blocks) x (key blocks) of some K/V heads. A first kernel computes S and
// dP of its visible tiles of 128 x 128 and stores P and dS in scratch; a second one forms the three products
//   dQ += scale dS K        dV += P^T dO        dK += scale dS^T Q
// each element in one CTA, in the order of the tokens. That is five products for each pair and no more at any head dimension, without an order
// between CTAs. Rounds follow one another on the stream, query blocks ascending, so every sum has one order and nothing is atomic.
//
// At head dimensions 64 and 128 on Hopper P and dS stay on the chip, and additions to dQ in memory take turns (backward_narrow).
#pragma once

#include <cstdint>

#include "ops/attention/attention_mask.cuh"

namespace sluice::cuda {

constexpr int backward_block = 128;                             // queries or keys of a tile
constexpr int backward_tile = backward_block * backward_block;  // elements
constexpr int backward_most_query_blocks = 64;                  // of a round

struct BackwardRound {
  int kv_begin, kv_count;  // K/V heads
  int q_begin, q_count;    // query blocks
  int k_begin, k_count;    // key blocks
  int slots;               // tiles in scratch for each query block: key blocks base … base + slots - 1
  int set_dq;              // dQ is overwritten, not added to
  int base[backward_most_query_blocks];

  // Head and query block counted from the round's first.
  __host__ __device__ int tile(int head, int q, int k_block) const {
    return (head * q_count + q) * slots + k_block - base[q];
  }
};

struct BackwardArgs {
  AttentionMask mask;
  int num_tokens, padded, num_heads, group, head_dim;  // padded: to whole blocks; group: query heads of a K/V head
  float scale, softcap;
  // exp S = 2^(factor q . k); with a softcap 2^(factor S), where exp(2 S_0 / softcap) = 2^(cap_in q . k) of S_0 before it.
  float factor, cap_in;
  const void *q, *k, *v, *do_;
  const float* lse;           // [N, H]
  const float *lse2, *delta;  // [H, padded]: lse / log 2, infinite behind the last token (P is zero there); do . o
  float *dq, *dk, *dv;
  void *p, *ds;  // tiles
};

// What the queries of a block (counted from the round's first) see of a key block. Whole warps need not ask together.
__device__ inline Sight sight_of(const BackwardRound& round, const AttentionMask& mask, int q, int k_block) {
  const int q_block = round.q_begin + q;
  if (q >= round.q_count || k_block > q_block || k_block < round.base[q] || k_block >= round.base[q] + round.slots ||
      k_block >= round.k_begin + round.k_count)
    return Sight::none;
  constexpr int parts = backward_block / mask_block;
  return mask.sight(merge(mask.block(q_block * parts), mask.block(q_block * parts + 1)),
                    merge(mask.block(k_block * parts), mask.block(k_block * parts + 1)));
}

// A round on mma.sync: bf16, head dimensions of portable_backward_takes() (attention_portable.h), tensors at multiples of 16 bytes; tiles are bf16.
// attention_backward_portable.cu.
void backward_portable(const Context& ctx, const BackwardArgs& args, const BackwardRound& round);
// The same for portable_backward_narrow_of(): tiles of dS alone, as [keys, queries]. attention_backward_narrow_portable.cu.
void backward_narrow_portable(const Context& ctx, const BackwardArgs& args, const BackwardRound& round);

// Kernels for bf16 and head dimensions that are multiples of 64; attention_backward_sm90.cu. The maps are made once for all rounds.
class BackwardSm90 {
 public:
  static bool takes(int64_t head_dim) { return head_dim % 64 == 0; }
  BackwardSm90(const Context& ctx, const BackwardArgs& args);
  void run(const BackwardRound& round) const;

 private:
  struct alignas(64) Map {
    unsigned char bytes[128];
  };
  const Context& ctx_;
  BackwardArgs args_;
  Map q_, k_, v_, do_;  // CUtensorMap
};

// Kernels for bf16 and head dimensions 64 and 128, without rounds: a CTA holds dK and dV of 128 keys in registers and adds to dQ in memory, to each
// block of queries in the order of the keys. attention_backward_narrow_sm90.cu. dq, dk and dv lie at multiples of 16 bytes.
bool backward_narrow_takes(int64_t head_dim);
// Numbers at `turns`: scratch by which CTAs keep the order of their additions.
int64_t backward_narrow_turns(int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim);
void backward_narrow(const Context& ctx, const BackwardArgs& args, int* turns);

}  // namespace sluice::cuda
