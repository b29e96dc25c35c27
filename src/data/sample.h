// A row as token ids and a mask of what is to be learned.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

struct Sample {
  std::vector<int32_t> ids;
  std::vector<uint8_t> supervised;  // per token: 1 where this token is a target
  std::vector<float> weights;       // per token, of the targets' losses; empty: all 1
  int64_t row = 0;                  // number of the row in its file, from 1 (data/row_source.h)

  int64_t num_targets() const;
  float weight(size_t t) const { return weights.empty() ? 1.0F : weights[t]; }
};

// What of a row is learned: of answers, those that their keys and the row's do not leave out.
enum class TrainOn : uint8_t { all_answers, last_answer, everything };

// Of rows that are too long. end: the row is cut at its end, whatever is there; left, right: of its prompt (data/prompt_cut.h).
enum class Truncate : uint8_t { no, end, left, right };
inline constexpr std::array<const char*, 4> truncate_names = {"false", "true", "left", "right"};
Truncate truncate_of(std::string_view name);  // throws Error(bad_config)

}  // namespace sluice
