// Rotary frequencies from a config: default, linear, llama3 and yarn scaling. Evaluated in float64.
//
// A setting is computed as the owner of the format computes it (transformers 5, llama.cpp), or refused by name: none is passed over.
#pragma once

#include <string>
#include <vector>

#include "io/weight_source.h"
#include "model/config.h"
#include "model/config_reader.h"

namespace sluice {

// f_i = theta^(-2i / head_dim), i < head_dim / 2. Throws Error(bad_config) naming `where` for a dimension that is odd or absurd.
std::vector<double> rope_frequencies(double theta, int64_t head_dim, const std::string& where);

// What a block of parameters may leave out.
struct RopeDefaults {
  double theta = 10000;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;  // 0: unknown; original_max_position_embeddings where the block has none
};

// From one block of Hugging Face's (null: none): `rope_type` or, in older files, `type`; `rope_theta`; what the type needs. Types: default,
// linear, llama3, yarn; others throw Error(bad_config) by name. `where` names the file in messages.
//   llama3: the piecewise rule of Llama 3.1;   yarn: Peng et al. 2023, arXiv:2309.00071.
RopeConfig rope_from_json(const Json& parameters, const RopeDefaults& defaults, const std::string& where);

// The block of a config.json whose layers have one rope. transformers 5 takes `rope_scaling` before `rope_parameters`, a block's theta before
// that at the top level, and an original_max_position_embeddings at the top level before the block's. Thetas of two blocks that differ are refused.
Json rope_block(const ConfigReader& config);

// Positions that the base is made for: max_position_embeddings, times the factor of a linear block; the stretched original length of a yarn block.
int64_t stretched_positions(const Json& block, int64_t max_position_embeddings);

// From GGUF metadata and the tensor rope_freqs.weight (divisors; 1e30 stands for a pair that is not rotated). A factor without a type is linear,
// rope.scale_linear is its older name, and attn_factor multiplies what the type gives for cos and sin.
RopeConfig rope_from_gguf(const WeightSource& source, const ConfigReader& config, double theta, int64_t head_dim);
// Throws Error(bad_config) where `key` says that only a part of each head is rotated.
void check_rotated(const ConfigReader& config, const std::string& key, int64_t head_dim);
// The block that those keys say.
Json gguf_rope_block(const ConfigReader& config);

}  // namespace sluice
