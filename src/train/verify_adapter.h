// What is saved is worth loading: finite numbers, which give the same log-probabilities as those that were trained.
#pragma once

#include <string>

#include "data/dataset.h"
#include "train/streamed_step.h"

namespace sluice {

// Loads the adapter from `folder` and compares the log-probabilities of one row with those of the adapter in memory. The loaded numbers
// go into `scratch`, as large as the adapter (the gradient's memory, between steps). Throws Error(bad_file) unless they are equal to the bit.
void verify_saved_adapter(Context& ctx, const Model& model, const Adapter& adapter, const std::string& folder,
                          Tensor scratch, const Sample& row, const StepSettings& settings);

// Names the first number that is not finite, "layers.0.self_attn.q_proj/B is not finite (nan)", or a moment of it; empty when all are.
std::string find_not_finite(const AdapterLayout& layout, const float* parameters, const float* m, const float* v);

}  // namespace sluice
