#include "data/ultrafeedback.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "data/row_keys.h"
#include "data/row_shapes.h"

namespace sluice {

namespace {

// A number, or a text that is one; "N/A" is none.
std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<double> number_at(const Json& object, const char* key) {
  return object.contains(key) ? number_of(object[key]) : std::nullopt;
}

// {"helpfulness": {"Rating": "4"}, "honesty": {"Rating": "N/A"}, …}
std::optional<double> mean_of_annotations(const Json& completion) {
  double sum = 0;
  int64_t count = 0;
  for (const Json& aspect : completion.value("annotations", Json::object())) {
    const std::optional<double> rating = aspect.is_object() ? number_at(aspect, "Rating") : std::nullopt;
    if (rating) sum += *rating, ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

// overall_score comes late: of some 2,000 rows of the published file it is 10 where the critique says 1 (argilla/ultrafeedback-binarized-preferences).
std::optional<double> rating_of(const Json& completion) {
  if (const auto score = number_at(completion, "fine-grained_score")) return score;
  if (const auto mean = mean_of_annotations(completion)) return mean;
  for (const char* key : {"overall_score", "rating", "score"}) {
    if (const auto score = number_at(completion, key)) return score;
  }
  return std::nullopt;
}

const Json& text_of(const Json& completion, size_t index) {
  for (const char* key : {"response", "text", "content"}) {
    if (completion.contains(key) && completion[key].is_string()) return completion[key];
  }
  refuse_row(
      fmt::format("completions[{}] has no \"response\", needed {{\"response\", \"fine-grained_score\"}}", index));
}

}  // namespace

bool is_ultrafeedback(const Json& row) {
  return row.contains("completions") && !row.contains("chosen") && kind_of_row(row) == RowKind::ultrafeedback;
}

std::optional<PreferenceRow> best_against_worst(const Json& row) {
  const std::optional<Asked> asked = asked_by(row);
  if (!asked) refuse_row("there is no \"instruction\" beside the completions");
  const Json& completions = row["completions"];
  std::optional<size_t> best, worst;
  std::vector<double> ratings(completions.size());
  for (size_t i = 0; i < completions.size(); ++i) {
    if (!completions[i].is_object())
      refuse_row(fmt::format("completions[{}] is {}, needed an object with a response", i, shortened(completions[i])));
    const std::optional<double> rating = rating_of(completions[i]);
    if (!rating) continue;
    ratings[i] = *rating;
    if (!best || *rating > ratings[*best]) best = i;
    if (!worst || *rating < ratings[*worst]) worst = i;
  }
  if (!best || ratings[*best] == ratings[*worst]) return std::nullopt;
  PreferenceRow pair;
  pair.row = row;
  pair.prompt = asked->prompt;
  pair.chosen = text_of(completions[*best], *best);
  pair.rejected = text_of(completions[*worst], *worst);
  pair.kind = "UltraFeedback";
  pair.prompt_name = asked->name;
  pair.read = asked->read;
  pair.read.emplace_back("completions");
  return pair;
}

}  // namespace sluice
