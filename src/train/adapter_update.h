// One AdamW update of an adapter, each kind of its numbers with its own rate and decay.
//
//   A: lr, weight_decay        B: b_ratio * lr, weight_decay        magnitude (DoRA): lr, no decay
//
// The decay is decoupled, so it is multiplied by the rate of its kind. A magnitude starts as the base's own row norms: to decay it would shrink
// the base. b_ratio is LoRA+'s: Hayou et al. 2024, arXiv:2402.12354, eq. 5; 1 is
// plain LoRA, to the bit.
#pragma once

#include "model/lora.h"
#include "ops/adamw/adamw.h"

namespace sluice {

// `step` is for the whole flat buffer, its lr and weight_decay those of A.
void update_adapter(Context& ctx, const AdapterLayout& layout, const AdamW& step, double b_ratio);

}  // namespace sluice
