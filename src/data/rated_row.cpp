#include "data/rated_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/preference_row.h"
#include "data/row_keys.h"
#include "data/row_shapes.h"

namespace sluice {

namespace {

constexpr const char* needed = "{\"prompt\", \"completion\", \"label\"}, label true or false";

// Tables have texts.
bool verdict(const Json& value, const char* key) {
  if (value.is_boolean()) return value.get<bool>();
  std::string text = value.is_string() ? value.get<std::string>() : "";
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text != "true" && text != "false")
    refuse_row(fmt::format("{} is {}, needed true or false", key, shortened(value)));
  return text == "true";
}

// The last message of a conversation is the answer.
DataRow conversation(const Json& row, const Asked& asked, std::vector<std::string_view> read) {
  Json prompt = asked.prompt;
  if (!prompt.is_array() || prompt.size() < 2 || prompt.back().value("role", Json()) != "assistant")
    refuse_row(fmt::format("{} does not end with an assistant's answer after a prompt, which label rates", asked.name));
  const Json answer = Json::array({prompt.back()});
  prompt.erase(prompt.size() - 1);
  return answer_row(
      {.row = row, .prompt = prompt, .answer = answer, .prompt_name = asked.name, .answer_name = asked.name}, read);
}

}  // namespace

std::vector<RatedRow> parse_rated(const Json& row) {
  const char* key = row.contains("kto_tag") ? "kto_tag" : "label";
  const bool pairs = row.contains("chosen") || row.contains("chosen_response") ||
                     (row.contains("completions") && kind_of_row(row) == RowKind::ultrafeedback);
  if (pairs) {
    const std::optional<PreferenceRow> pair = parse_preference(row);
    if (!pair) return {};
    RatedRow chosen, rejected;
    chosen.data = pair->with_chosen();
    rejected.data = pair->with_rejected();
    rejected.desirable = false;
    chosen.kind = rejected.kind = pair->kind;
    return {chosen, rejected};
  }
  if (!row.contains(key)) refuse_row(fmt::format("there is no \"label\", needed {}", needed));
  const std::optional<Asked> asked = asked_by(row);
  if (!asked) refuse_row(fmt::format("there is no \"prompt\", needed {}", needed));
  std::vector<std::string_view> read = asked->read;
  read.emplace_back(key);
  RatedRow rated;
  rated.desirable = verdict(row[key], key);
  rated.kind = "unpaired preference";
  const char* answer = row.contains("completion") ? "completion" : asked->name == "instruction" ? "output" : nullptr;
  if (answer != nullptr && row.contains(answer)) {
    read.emplace_back(answer);
    rated.data = answer_row(
        {.row = row, .prompt = asked->prompt, .answer = row[answer], .prompt_name = asked->name, .answer_name = answer},
        read);
  } else if (asked->name == "messages" || asked->name == "conversations") {
    rated.data = conversation(row, *asked, read);
  } else {
    refuse_row(fmt::format("there is no \"completion\", needed {}", needed));
  }
  refuse_graded_weights(rated.data);
  return {rated};
}

}  // namespace sluice
