// Any bytes as a row: it becomes a sample, a pair or rated answers whose marks and tokens agree, or is refused with an Error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "data/preference.h"
#include "data/rated_row.h"
#include "data/row_text.h"
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
  accepts_or_refuses([&] {
    const std::vector<RatedRow> answers = parse_rated(parse_object(line));
    return std::all_of(answers.begin(), answers.end(), [&](const RatedRow& row) {
      return is_whole(tokenise(row.data, text, TrainOn::all_answers).sample);
    });
  });
  accepts_or_refuses([&] {
    static const Columns columns{{{"prompt", "a"}, {"messages", "b"}, {"role", "c"}, {"content", "prompt"}}};
    Json row = parse_object(line);
    columns.apply(row);
    return is_whole(tokenise(parse_row(row), text, TrainOn::all_answers).sample);
  });
  return 0;
}
