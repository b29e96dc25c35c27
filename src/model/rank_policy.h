// Ranks by module from what is known of the base: how finely it is stored, or how much its quantisation changed it.
//
//   uniform   rank
//   by_bits   rank * bits / 4                         bits: of one code of the module's weight (q4_k and 4-bit affine 4); where the weight is
//                                                     not quantised the rank stays
//   by_kl     rank * clip(kl / median(kl), 0.5, 2)    kl: of the module in optiq_metadata.json; the median is over the adapted modules that
//                                                     have one there, the rank of the others stays
//
// rounded to the nearest integer, halves up, and at least 1. A module that the user's rank_pattern names keeps that rank.
//
// The scale stays what the user asked for in every module (alpha grows with the rank), so that a policy moves capacity, not strength, and an
// mlx-lm file needs no scale of its own by module. With rank_stabilised alpha is the constant, since scale = alpha / sqrt(rank) is its rule.
//
//   AdapterLayout layout(model.config, with_ranks(model, spec, RankPolicy::by_bits));
//   fmt::print("{}", rank_table(layout));
#pragma once

#include <string>

#include "model/model.h"

namespace sluice {

enum class RankPolicy : uint8_t { uniform, by_bits, by_kl };

// `spec` with a rank and an alpha for every adapted module, after the patterns that it has. Throws Error(bad_config) for by_kl when
// optiq_metadata.json is not there or says nothing of any adapted module.
AdapterSpec with_ranks(const Model& model, AdapterSpec spec, RankPolicy policy);

// by_kl: one line that names the adapted modules without a figure; empty when there is none.
std::string without_figures(const Model& model, const AdapterLayout& layout);

// Bits of one stored number, without the block's scales.
int64_t code_bits(const Weight& weight);

// "layers 0-3    q_proj 8, v_proj 4", one line for each run of layers with the same ranks.
std::string rank_table(const AdapterLayout& layout);

}  // namespace sluice
