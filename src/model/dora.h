// The norms that a DoRA adapter is used with: the lengths of the rows of W + scale B A, of every adapted module (ops/dora/dora.h).
//
//   refresh_norms(ctx, model, adapter);     // after every change of A or B; nothing to do without DoRA
#pragma once

#include "model/adapter_file.h"
#include "model/model.h"

namespace sluice {

// Fills adapter.norms().
void refresh_norms(Context& ctx, const Model& model, const Adapter& adapter);

// Magnitudes and norms of a fresh adapter, whose B is 0: both the base's row norms, so that the layer is the base's to the bit.
void start_magnitudes(Context& ctx, const Model& model, const Adapter& adapter);

// Makes a loaded adapter ready to run with the model: fills its norms, with an arena of its own, and places both on the model's device.
void prepare_adapter(ThreadPool& pool, const Model& model, LoadedAdapter& loaded);

}  // namespace sluice
