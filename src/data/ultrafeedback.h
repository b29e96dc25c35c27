// Rows of an instruction and several completions with ratings, as UltraFeedback's raw file has them.
#pragma once

#include <optional>

#include "data/preference_row.h"

namespace sluice {

bool is_ultrafeedback(const Json& row);
// See parse_preference.
std::optional<PreferenceRow> best_against_worst(const Json& row);

}  // namespace sluice
