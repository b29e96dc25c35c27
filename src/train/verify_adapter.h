// Reload-and-compare: what was saved gives the same numbers as what was trained.
#pragma once

#include <string>

#include "data/dataset.h"
#include "train/streamed_step.h"

namespace sluice {

// Loads the adapter from `folder` and compares the log-probabilities of one row with those of the adapter in memory. The loaded numbers
// go into `scratch`, as large as the adapter (the gradient's memory, between steps). Throws Error(bad_file) unless they are equal to the bit.
void verify_saved_adapter(Context& ctx, const Model& model, const Adapter& adapter, const std::string& folder,
                          Tensor scratch, const Sample& row, const StepSettings& settings);

}  // namespace sluice
