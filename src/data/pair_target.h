// What a target token of a preference pair counts for.
#pragma once

#include <cstdint>

namespace sluice {

// prompt: context of the chosen answer, trained on only where the objective's NLL covers the prompt.
enum class Part : uint8_t { prompt, chosen, rejected };

struct PairTarget {
  int32_t pair = 0;  // of the microbatch, from 0
  Part part = Part::chosen;
};

}  // namespace sluice
