// Any bytes as a row of JSONL: it becomes a sample or a pair whose marks and tokens agree, or is refused with an Error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "data/preference.h"
#include "support/letters.h"

namespace {

using namespace sluice;

bool is_whole(const Sample& s) {
  const bool weighed = s.weights.empty() ||
                       (s.weights.size() == s.ids.size() &&
                        std::all_of(s.weights.begin(), s.weights.end(), [](float w) { return w >= 0 && w <= 1e12F; }));
  return weighed && s.ids.size() == s.supervised.size() && s.num_targets() <= static_cast<int64_t>(s.ids.size()) &&
         std::all_of(s.ids.begin(), s.ids.end(), [](int32_t id) { return id >= 0; });
}

template <class Read>
void accepts_or_refuses(const Read& read) {
  try {
    if (!read()) std::abort();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::bug) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ModelText& text = test::chat_model();
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  for (TrainOn train_on : {TrainOn::all_answers, TrainOn::last_answer, TrainOn::everything})
    accepts_or_refuses([&] { return is_whole(make_sample(line, text, train_on)); });
  accepts_or_refuses([&] {
    const PairSample pair = make_pair_sample(line, text);
    const auto shorter = static_cast<int64_t>(std::min(pair.chosen.ids.size(), pair.rejected.ids.size()));
    return is_whole(pair.chosen) && is_whole(pair.rejected) && pair.shared >= 0 && pair.shared <= shorter;
  });
  return 0;
}
