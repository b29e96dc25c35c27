#include "data/row_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

namespace {

struct Learned {
  ByteRange bytes;
  double weight = 1;  // 0: of an answer that is left out
};

struct Rendered {
  std::string text;
  std::vector<Learned> learned;  // ascending
  bool rewritten = false;
};

// The weight of each message as it is trained on.
std::vector<double> weights_of(const DataRow& row, TrainOn train_on) {
  std::vector<double> weights = row.weights;
  size_t last = row.messages.size();
  for (size_t i = 0; i < row.messages.size(); ++i) {
    if (row.messages[i]["role"] != "assistant" || (i < row.first_target && train_on != TrainOn::everything))
      weights[i] = 0;
    else last = i;
  }
  for (size_t i = 0; i < last && train_on == TrainOn::last_answer; ++i) weights[i] = 0;
  return weights;
}

Rendered render_plain(const DataRow& row, const ModelText& text, double weight) {
  const auto& prompt = row.messages[0]["content"].get_ref<const std::string&>();
  const std::optional<int32_t> eos = text.tokenizer.eos_id();
  Rendered result{.text = prompt + row.messages[1]["content"].get_ref<const std::string&>() +
                          (eos ? std::string(text.tokenizer.token_text(*eos)) : std::string())};
  result.learned = {{{static_cast<int64_t>(prompt.size()), static_cast<int64_t>(result.text.size())}, weight}};
  return result;
}

Rendered render(const DataRow& row, const ModelText& text, TrainOn train_on) {
  const std::vector<double> weights = weights_of(row, train_on);
  if (row.plain && !text.chat && text.template_problem.empty()) return render_plain(row, text, weights[1]);
  Rendered result;
  check(text.end_problem.empty(), ErrorCode::bad_config, text.end_problem);
  RenderedChat chat = text.need_chat().render(
      {.messages = row.messages, .tools = row.tools, .documents = row.documents, .arguments = row.arguments});
  for (const LearnedTurn& turn : chat.turns) {
    const double weight = weights[turn.message];
    std::string written;
    for (const ByteRange& range : turn.ranges) {
      result.learned.push_back({range, weight});
      written += chat.text.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    }
    const auto& content = row.messages[turn.message]["content"].get_ref<const std::string&>();
    result.rewritten = result.rewritten || (weight > 0 && written.find(content) == std::string::npos);
  }
  result.text = std::move(chat.text);
  return result;
}

struct TokenWeights {
  std::vector<double> weights;  // of every token: that of the range it overlaps, of several the last
  int64_t untouched = 0;        // ranges that are to be learned and that no token but the first overlaps
};

TokenWeights weigh(const Encoding& encoding, const std::vector<Learned>& learned, double elsewhere) {
  TokenWeights result{.weights = std::vector<double>(encoding.ids.size(), elsewhere)};
  std::vector<bool> touched(learned.size(), false);
  size_t first = 0;  // ranges and tokens ascend together
  for (size_t t = 0; t < encoding.ids.size(); ++t) {
    const ByteRange token = encoding.offsets[t];
    if (token.size() == 0) continue;
    while (first < learned.size() && learned[first].bytes.end <= token.begin) ++first;
    for (size_t r = first; r < learned.size() && learned[r].bytes.begin < token.end; ++r) {
      if (learned[r].bytes.size() == 0) continue;
      result.weights[t] = learned[r].weight;
      touched[r] = touched[r] || t > 0;
    }
  }
  for (size_t r = 0; r < learned.size(); ++r) result.untouched += learned[r].weight > 0 && !touched[r] ? 1 : 0;
  return result;
}

}  // namespace

size_t first_learned(const DataRow& row, TrainOn train_on) {
  const std::vector<double> weights =
      weights_of(row, train_on == TrainOn::everything ? TrainOn::all_answers : train_on);
  return static_cast<size_t>(std::find_if(weights.begin(), weights.end(), [](double w) { return w > 0; }) -
                             weights.begin());
}

TokenisedRow tokenise(const DataRow& row, const ModelText& text, TrainOn train_on) {
  const bool everything = train_on == TrainOn::everything;
  if (everything && row.masks_prompt) {
    refuse_row(
        "a message that is not the assistant's says that it is not learned, and mask_prompt: false trains on every "
        "token; set mask_prompt: true");
  }
  Rendered rendered = render(row, text, train_on);
  Encoding encoding = text.tokenizer.encode(rendered.text, {.add_special = true});
  SLUICE_ASSERT(encoding.ids.size() == encoding.offsets.size());
  auto [weights, untouched] = weigh(encoding, rendered.learned, everything ? row.weight : 0);
  TokenisedRow result{
      .sample = {.ids = std::move(encoding.ids)}, .rewritten = rendered.rewritten, .answers_without_token = untouched};
  Sample& sample = result.sample;
  for (size_t t = 0; t < weights.size(); ++t) sample.supervised.push_back(t > 0 && weights[t] > 0 ? 1 : 0);
  if (std::any_of(weights.begin(), weights.end(), [](double w) { return w != 0 && w != 1; }))
    sample.weights.assign(weights.begin(), weights.end());
  return result;
}

}  // namespace sluice
