// Rotary frequencies from a config: default, linear, llama3 and yarn scaling. Evaluated in float64.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "model/config.h"

namespace sluice {

// f_i = theta^(-2i / head_dim), i < head_dim / 2.
std::vector<double> rope_frequencies(double theta, int64_t head_dim);

// From Hugging Face's `rope_scaling` or `rope_parameters` object (null: none). Types: default, linear, llama3, yarn; others
// throw Error(bad_config) by name. `where` names the file in messages.
//   llama3: the piecewise rule of Llama 3.1;   yarn: Peng et al. 2023, arXiv:2309.00071.
RopeConfig rope_from_json(const Json& scaling, double theta, int64_t head_dim, const std::string& where);

}  // namespace sluice
