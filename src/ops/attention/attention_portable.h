// How attention's tensor-core kernels for every card from 8.0 on cut their work, and what they take of a card: plain numbers, so that tests
// compare them with each card's limits where there is none.
//
// Rows of a tile in shared memory are 16 bytes longer than their data, an odd number of 16-byte units: eight neighbouring rows, which ldmatrix
// reads at once, then lie in different banks.
#pragma once

#include <cstdint>

namespace sluice {

constexpr int64_t tile_row_bytes(int64_t columns) { return columns * 2 + 16; }

// The forward pass: a block of threads holds `rows` queries of one head and walks blocks of `keys` keys. A warp has 16 or 32 of the rows, whole:
// their scores stay in its registers as the second product's operand.
struct PortableForward {
  int head_dim, rows_of_warp, warps, keys;
  constexpr int rows() const { return rows_of_warp * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int64_t shared_bytes() const { return (rows() + 2 * keys) * tile_row_bytes(head_dim); }
};
// A warp with 32 rows reads half as much of K and V from shared memory for each product, and does not have the registers for it at 256.
constexpr PortableForward portable_forward[] = {
    {64, 32, 4, 64}, {80, 32, 4, 64}, {96, 32, 4, 64}, {128, 32, 4, 64}, {256, 16, 4, 64}};
constexpr const PortableForward* portable_forward_of(int64_t head_dim) {
  for (const PortableForward& f : portable_forward) {
    if (f.head_dim == head_dim) return &f;
  }
  return nullptr;
}

// At head dimension 512: `sharers` warps share `group_rows` queries, each with some of the columns.
struct PortableForwardWide {
  int head_dim = 512, sharers = 4, group_rows = 32, groups = 2, keys = 32;
  constexpr int rows() const { return group_rows * groups; }
  constexpr int threads() const { return 32 * sharers * groups; }
  // Keys and values; weights; the parts of the scores that warps send each other (8 rows each); a factor for each row.
  constexpr int64_t shared_bytes() const {
    return 2 * keys * tile_row_bytes(head_dim) + rows() * tile_row_bytes(keys) +
           groups * sharers * (sharers - 1) * 8 * keys * 4 + rows() * 4;
  }
};

// The backward pass, in rounds (attention_backward.cuh), for any head dimension that is a multiple of 8. Both kernels have four warps and keep
// `portable_stages` steps of the depth of their products on the way.
constexpr int portable_stages = 3, portable_depth = 32, portable_warps = 4;
// Scores: 128 queries x 64 keys.
constexpr int portable_score_keys = 64;
constexpr int64_t portable_scores_bytes() {
  return portable_stages * (128 + portable_score_keys) * tile_row_bytes(portable_depth);
}
// Products: 128 rows x `columns` of dQ, dK or dV; the left operand is 128 x 32 of a tile or, turned, 32 x 128.
constexpr int64_t portable_products_bytes(int columns) {
  constexpr int64_t left = 128 * tile_row_bytes(portable_depth), turned = portable_depth * tile_row_bytes(128);
  return portable_stages * ((left > turned ? left : turned) + portable_depth * tile_row_bytes(columns));
}
// The columns that a block of threads takes at once.
constexpr int portable_columns(int64_t head_dim) { return head_dim <= 64 ? 64 : head_dim == 192 ? 96 : 128; }
constexpr bool portable_backward_takes(int64_t head_dim) { return head_dim % 8 == 0; }

// Head dimensions whose dK and dV fit in the registers beside them: a block of threads holds `keys` keys and values and walks blocks of 32 queries,
// which come while those before are worked on; dS alone goes to scratch, for dQ by the products' kernel.
struct PortableBackwardNarrow {
  int head_dim, keys_of_warp, dq_columns;
  static constexpr int queries = 32;
  constexpr int keys() const { return keys_of_warp * portable_warps; }
  // A block of keys and values, two of queries and dO with lse and delta.
  constexpr int64_t shared_bytes() const {
    return (2 * keys() + 2 * 2 * queries) * tile_row_bytes(head_dim) + 2 * 2 * queries * 4;
  }
};
constexpr PortableBackwardNarrow portable_backward_narrow[] = {
    {64, 32, 64}, {80, 16, 80}, {96, 16, 96}, {128, 16, 128}};
constexpr const PortableBackwardNarrow* portable_backward_narrow_of(int64_t head_dim) {
  for (const PortableBackwardNarrow& b : portable_backward_narrow) {
    if (b.head_dim == head_dim) return &b;
  }
  return nullptr;
}

}  // namespace sluice
