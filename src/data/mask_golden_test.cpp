// What is learned of a conversation against an oracle that knows no template: tests/oracle/make_mask_golden.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "data/dataset.h"
#include "support/letters.h"
#include "support/oracle.h"
#include "support/source_dir.h"

namespace sluice::test {

namespace {

// The toy tokenizer of the oracle: bytes, two merges, the marks of a template.
ModelText model_of(const Json& golden) {
  Letters letters;
  std::vector<std::string> texts = letters.texts;
  for (const char* merged : {"ab", "Ġa"}) texts.emplace_back(merged);
  for (const Json& mark : golden["marks"]) texts.push_back(mark.get<std::string>());
  const std::vector<std::string_view> tokens(texts.begin(), texts.end()),
      merges(letters.merges.begin(), letters.merges.end());
  std::vector<int32_t> types(tokens.size(), 1);
  std::fill(types.begin() + 258, types.end(), 3);
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "smollm";
  v.tokens = tokens;
  v.types = types;
  v.merges = merges;
  v.eos_id = static_cast<int32_t>(std::find(texts.begin(), texts.end(), golden["stops"][0].get<std::string>()) -
                                  texts.begin());
  v.add_bos = false;
  ModelText text{.tokenizer = Tokenizer::from_gguf(v)};
  TemplateTokens names{.stops = golden["stops"].get<std::vector<std::string>>()};
  for (const auto& [name, token] : golden["tokens"].items()) names.texts.emplace_back(name, token.get<std::string>());
  text.chat = ChatTemplate::from_sources(
      {{.text = read_whole_file(source_dir() / "tests/golden/chat" / (golden["name"].get<std::string>() + ".jinja"))}},
      names);
  return text;
}

struct Run {
  std::vector<int32_t> ids;
  size_t begin = 0;
};

// Stretches of supervised tokens. Answers that touch are told apart by the end of a turn.
std::vector<Run> runs_of(const Sample& sample, const std::set<int32_t>& stops) {
  std::vector<Run> runs;
  for (size_t t = 0; t < sample.ids.size(); ++t) {
    if (sample.supervised[t] == 0) continue;
    const bool goes_on = t > 0 && sample.supervised[t - 1] != 0 && !runs.empty() && stops.count(sample.ids[t - 1]) == 0;
    if (!goes_on) runs.push_back({{}, t});
    runs.back().ids.push_back(sample.ids[t]);
  }
  return runs;
}

}  // namespace

TEST_CASE(
    "FieldD6_ over all templates and 1,000 conversations what is learned is what the oracle marks, token by token") {
  const Json golden = Json::parse(read_whole_file(source_dir() / "tests/golden" / "chat_masks.json"));
  int64_t rows = 0, answers = 0;
  for (const Json& one : golden["templates"]) {
    CAPTURE(one["name"].get<std::string>());
    const ModelText text = model_of(one);
    std::set<int32_t> stops;
    for (const Json& stop : one["stops"]) {
      for (int32_t id : text.tokenizer.encode(stop.get<std::string>()).ids) stops.insert(id);
    }
    for (const Json& row : one["rows"]) {
      CAPTURE(row["messages"].dump());
      const Sample sample = make_sample(Json({{"messages", row["messages"]}}).dump(), text);
      const std::vector<Run> runs = runs_of(sample, stops);
      REQUIRE(runs.size() == row["answers"].size());
      for (size_t i = 0; i < runs.size(); ++i) {
        const Json& answer = row["answers"][i];
        const std::vector<int32_t>& ids = runs[i].ids;
        CHECK(static_cast<int64_t>(ids.size()) == answer["tokens"].get<int64_t>());
        // A token may be a part of a character.
        CHECK(answer["first"].get<std::string>().starts_with(text.tokenizer.decode({&ids.front(), 1})));
        CHECK(answer["last"].get<std::string>().ends_with(text.tokenizer.decode({&ids.back(), 1})));
        const auto begin = answer["begin"].get<size_t>();
        const std::string before = text.tokenizer.decode(std::span(sample.ids).first(runs[i].begin)),
                          all = before + text.tokenizer.decode(ids);
        CHECK(before.size() <= begin);
        CHECK(before.size() + 1 >= begin);  // " a" begins one byte before the answer
        CHECK(all.size() == answer["end"].get<size_t>());
        ++answers;
      }
      ++rows;
    }
  }
  CHECK(rows == 1000);
  CHECK(answers > 2000);
}

}  // namespace sluice::test
