// Rows of other tools against what the tools make of them (tests/golden/rows, by tests/oracle/make_rows_golden.py), and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/rated.h"
#include "data/rated_row.h"
#include "data/row_text.h"
#include "support/letters.h"
#include "support/oracle.h"
#include "support/source_dir.h"

namespace sluice::test {

namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class Read>
std::string refusal_of(const Read& read) {
  try {
    read();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string sft_refusal(const Json& row, const DatasetOptions& options = {}) {
  const File file(row.dump() + "\n");
  return refusal_of([&] { read_dataset(file.path, chat_model(), options); });
}
std::string pair_refusal(const Json& row) {
  return refusal_of([&] { make_pair_sample(row.dump(), chat_model()); });
}

struct Read {
  DataRow data;
  Json label;
};

std::vector<Read> read_case(const Json& one) {
  Json row = one["row"];
  Columns columns;
  const Json names = one.value("columns", Json::object());
  for (const auto& [name, own] : names.items()) columns.names.emplace_back(name, own.get<std::string>());
  columns.apply(row);
  std::vector<Read> all;
  if (one["reads"] == "sft") return {{parse_row(row), nullptr}};
  if (one["reads"] == "pair") {
    const auto pair = parse_preference(row);
    return {{pair.value().with_chosen(), nullptr}, {pair.value().with_rejected(), nullptr}};
  }
  for (RatedRow& rated : parse_rated(row)) all.push_back({std::move(rated.data), rated.desirable});
  return all;
}

void check_conversation(const Read& read, const Json& want, const ModelText& text) {
  CHECK(read.label == want.value("label", Json()));
  if (want.contains("ids")) {
    const Sample sample = tokenise(read.data, text, TrainOn::all_answers).sample;
    CHECK(Json(sample.ids) == want["ids"]);
    CHECK(Json(sample.supervised) == want["labels"]);
    return;
  }
  CHECK(read.data.messages == want["messages"]);
  CHECK(read.data.first_target == want["first_target"].get<size_t>());
  CHECK(read.data.tools == want.value("tools", Json()));
  CHECK(read.data.unread.empty());
}

}  // namespace

TEST_CASE("row kinds: rows of TRL, mlx-lm, LLaMA-Factory and Axolotl are what these tools make of them") {
  const fs::path folder = source_dir() / "tests/golden/rows";
  const ModelText text{.tokenizer = Tokenizer::from_tokenizer_json(
                           read_whole_file(folder / "tokenizer.json"),
                           TokenizerConfig::from_json(R"({"bos_token": "<s>", "eos_token": "</s>"})"))};
  int64_t cases = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() == "tokenizer.json") continue;
    CAPTURE(entry.path().string());
    for (const Json& one : Json::parse(read_whole_file(entry.path()))) {
      const std::string shown = one["row"].dump();
      CAPTURE(shown);
      const std::vector<Read> read = read_case(one);
      REQUIRE(read.size() == one["want"].size());
      for (size_t i = 0; i < read.size(); ++i) check_conversation(read[i], one["want"][i], text);
      ++cases;
    }
  }
  CHECK(cases >= 40);
}

TEST_CASE("row kinds: a function call of ShareGPT is learned through the template, like a call among messages") {
  ModelText text = Letters().model(false);
  text.chat = ChatTemplate::from_sources(
      {{.text = "{% for m in messages %}{{'<|im_start|>' + m.role + '\\n'}}{% if m.content %}{{m.content}}{% endif %}"
                "{% for c in m.tool_calls or [] %}{{c.function.name}} {{c.function.arguments | tojson}}{% endfor %}"
                "{{'<|im_end|>\\n'}}{% endfor %}"
                "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}"}},
      {.stops = {"<|im_end|>"}});
  const Json row = Json::parse(R"({"conversations": [{"from": "human", "value": "q"},
      {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1.0}}"},
      {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a"}]})");
  CHECK(preview(make_sample(row.dump(), text), text.tokenizer) ==
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦f {\"x\": 1.0}<|im_end|>⟧\n"
        "<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n");
}

TEST_CASE("row kinds: of UltraFeedback's completions the best stands against the worst, ties are dropped and counted") {
  const auto rated = [](const char* response, const Json& annotations, double overall) {
    return Json{{"response", response}, {"annotations", annotations}, {"overall_score", overall}};
  };
  const auto aspects = [](const char* a, const char* b) {
    return Json{{"helpfulness", {{"Rating", a}}}, {"honesty", {{"Rating", b}}}};
  };
  // The means are 4, 4, 2 and 3; overall_score would choose otherwise.
  const Json row = {{"instruction", "q"},
                    {"source", "web"},
                    {"completions",
                     {rated("one", aspects("4", "4"), 1), rated("two", aspects("5", "3"), 2),
                      rated("three", aspects("2", "N/A"), 10), rated("four", aspects("3", "3"), 4)}}};
  const PreferenceRow pair = parse_preference(row).value();
  CHECK(pair.prompt == "q");
  CHECK(pair.chosen == "one");
  CHECK(pair.rejected == "three");
  Json fine = row;
  fine["completions"][3]["fine-grained_score"] = 9.5;
  CHECK(parse_preference(fine).value().chosen == "four");
  const Json tied = {
      {"instruction", "r"},
      {"completions", {{{"response", "a"}, {"overall_score", 3}}, {{"response", "b"}, {"overall_score", "3"}}}}};
  CHECK_FALSE(parse_preference(tied).has_value());
  const File file(row.dump() + "\n" + tied.dump() + "\n");
  const PreferenceData data = read_preferences(file.path, chat_model(), {});
  CHECK(data.pairs.size() == 1);
  CHECK(data.report.rows_read == 2);
  CHECK(data.report.rows_tied == 1);
  CHECK(data.report.kinds == std::map<std::string, int64_t>{{"UltraFeedback", 1}});
  CHECK(data.report.unread_keys == std::map<std::string, int64_t>{{"source", 1}});
  CHECK(contains(data.report.summary(), "1 rows dropped, no two of their completions have different ratings"));
}

TEST_CASE("row kinds: kto reads pairs as two answers each, and measures its KL on another prompt") {
  std::string rows;
  for (const char* p : {"p", "q", "r"})
    rows += Json{{"prompt", p}, {"chosen", std::string(p) + "1"}, {"rejected", std::string(p) + "0"}}.dump() + "\n";
  const File file(rows);
  const RatedData data = read_rated(file.path, chat_model(), {});
  REQUIRE(data.rows.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const char prompt = "pqr"[i % 3];
    CHECK(data.rows[i].desirable == (i < 3));
    CHECK(learned(data.rows[i].own, chat_model()) == std::string(1, prompt) + (i < 3 ? "1" : "0") + "<|im_end|>");
    CHECK(learned(data.rows[i].mismatched, chat_model())[0] != prompt);
  }
}

TEST_CASE("row kinds: text is learned whole, and settings that cannot apply to it are refused by name") {
  const Json text = {{"text", "ab"}}, segments = {{"segments", {{{"label", true}, {"text", "x"}}}}};
  CHECK(preview(make_sample(Json{{"text", "cab"}}.dump(), chat_model()), chat_model().tokenizer) == "c⟦ab<|im_end|>⟧");
  CHECK(contains(sft_refusal(text, {.needs_answers = true}), "row 1: this is a text row, in which mask_prompt"));
  for (const Json& row : {text, segments})
    CHECK(contains(sft_refusal(row, {.train_on = TrainOn::last_answer}), "train_on: last is for answers"));
  CHECK(contains(sft_refusal({{"text", ""}}), "text is \"\", needed a string that is not empty"));
  CHECK(contains(sft_refusal({{"segments", {{{"label", 1}, {"text", "x"}}}}}), "segments[0] is {\"label\":1"));
  CHECK(contains(sft_refusal({{"segments", {{{"label", true}, {"text", "x"}, {"masked", true}}}}}),
                 "segments[0].masked is not known"));
  // A seam that a merge crosses: the token that holds the first character of what is learned is learned.
  const Json seam = {{"segments", {{{"label", false}, {"text", "xa"}}, {{"label", true}, {"text", "bc"}}}}};
  CHECK(preview(make_sample(seam.dump(), chat_model()), chat_model().tokenizer) == "x⟦abc⟧");
  const Json whole = {{"text", "cab"}, {"weight", 0.5}};
  CHECK(preview(make_sample(whole.dump(), chat_model()), chat_model().tokenizer) == "c⟦ab<|im_end|>⟧×0.5");
}

TEST_CASE("row kinds: what is wrong with a row of another tool is said under the names that it has") {
  const auto share = [](const Json& message) {
    return sft_refusal({{"conversations", {{{"from", "human"}, {"value", "q"}}, message}}});
  };
  CHECK(contains(share({{"from", "narrator"}, {"value", "x"}}), "conversations[1].role is \"narrator\", needed"));
  CHECK(contains(share({{"from", 3}, {"value", "x"}}), "conversations[1].from is 3, needed human"));
  CHECK(contains(share({{"from", "gpt"}}), "conversations[1] has no \"content\""));
  CHECK(contains(share({{"from", "function_call"}, {"value", "f(x)"}}),
                 "conversations[1].value is \"f(x)\", which is no JSON"));
  CHECK(contains(share({{"from", "function_call"}, {"value", "{\"name\": \"f\"}"}}),
                 "conversations[1].value has the call"));
  CHECK(contains(share({{"from", "gpt"}, {"value", "x"}, {"images", {"a.png"}}}), "conversations[1].images is"));
  const Json talk = {
      {{"from", "system"}, {"value", "S"}}, {{"from", "human"}, {"value", "q"}}, {{"from", "gpt"}, {"value", "a"}}};
  CHECK(contains(sft_refusal({{"conversations", talk}, {"system", "T"}}), "system is not the system message that"));
  CHECK(sft_refusal({{"conversations", talk}, {"system", "S"}}).empty());
  CHECK(contains(sft_refusal({{"instruction", "i"}, {"output", "o"}, {"history", {{"q"}}}}),
                 "history has [\"q\"], needed"));
  CHECK(contains(sft_refusal({{"instruction", "i"}, {"output", 3}}), "output is 3, needed a string"));
  CHECK(contains(sft_refusal({{"instruction", "i"}, {"output", "o"}, {"images", {"a.png"}}}), "row 1: images is"));
  CHECK(contains(pair_refusal({{"prompt", "a"}, {"instruction", "b"}, {"chosen", "x"}, {"rejected", "y"}}),
                 "prompt and instruction are both given"));
  CHECK(contains(pair_refusal({{"chosen", "same"}, {"rejected", "same"}}), "chosen and rejected do not differ"));
  CHECK(contains(pair_refusal({{"chosen", {{"messages", Json::array()}}}, {"rejected", "y"}}), "different kinds"));
}

TEST_CASE("row kinds: mlx-lm-lora's pairs hold their messages one deeper") {
  const auto answer = [](const char* text) {
    return Json{{"messages", {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", text}}}}};
  };
  const Json row = {{"chosen", answer("yes")}, {"rejected", answer("no")}, {"preference_score", 2.0}};
  const Json plain = {{"prompt", "q"}, {"chosen", "yes"}, {"rejected", "no"}};
  CHECK(make_pair_sample(row.dump(), chat_model()).chosen.ids ==
        make_pair_sample(plain.dump(), chat_model()).chosen.ids);
  CHECK(parse_preference(row).value().with_chosen().unread == std::vector<std::string>{"preference_score"});
}

TEST_CASE("columns: other names for keys are read, a missing one is refused with the row's keys") {
  const DatasetOptions options{.columns = {{{"prompt", "question"}, {"completion", "reply"}}}};
  const Json row = {{"question", "q"}, {"reply", "a"}, {"prompt", "not this"}};
  const File file(row.dump() + "\n");
  const Dataset data = read_dataset(file.path, chat_model(), options);
  CHECK(data.samples[0].ids == make_sample(R"({"prompt":"q","completion":"a"})", chat_model()).ids);
  CHECK(data.report.unread_keys == std::map<std::string, int64_t>{{"prompt of the file", 1}});
  CHECK(read_sample(file.path, 1, chat_model(), options).ids == data.samples[0].ids);
  CHECK(contains(sft_refusal({{"question", "q"}, {"answer", "a"}}, options),
                 "row 1: there is no \"reply\", which columns.completion names; the row has \"prompt\", \"answer\""));
}

TEST_CASE("columns: a name that may be missing from a row is refused where no row has it") {
  const Json row = {{"prompt", "q"}, {"chosen", "a"}, {"rejected", "b"}, {"rules", "Be brief."}};
  const File file(row.dump() + "\n");
  const auto read = [&](const char* own) {
    return read_preferences(file.path, chat_model(), {.columns = {{{"system", own}}}});
  };
  CHECK(contains(chat_model().tokenizer.decode(read("rules").pairs[0].chosen.ids), "system\nBe brief.<|im_end|>"));
  CHECK(contains(refusal_of([&] { read("rule"); }), "no row has \"rule\", which columns.system names"));
}

TEST_CASE("row kinds: a table's texts say what is rated, and hold conversations as JSON") {
  const File table("prompt,completion,label\nq,a,True\nr,b,false\n");
  const RatedData rated = read_rated(table.path, chat_model(), {});
  REQUIRE(rated.rows.size() == 2);
  CHECK(rated.rows[0].desirable);
  CHECK_FALSE(rated.rows[1].desirable);
  const File maybe("prompt,completion,label\nq,a,maybe\n");
  CHECK(contains(refusal_of([&] { read_rated(maybe.path, chat_model(), {}); }),
                 "row 1: label is \"maybe\", needed true or false"));
  const File talk(
      "id,conversations\n1,\"[{\"\"from\"\": \"\"human\"\", \"\"value\"\": \"\"q\"\"}, {\"\"from\"\": \"\"gpt\"\", "
      "\"\"value\"\": \"\"a\"\"}]\"\n");
  const Dataset data = read_dataset(talk.path, chat_model(), {});
  CHECK(data.samples[0].ids == make_sample(R"({"prompt":"q","completion":"a"})", chat_model()).ids);
}

TEST_CASE(
    "FieldD1_rows: rows of every kind begin with one BOS, whether the template writes it, the tokenizer or the row") {
  const fs::path folder = source_dir() / "tests/golden/rows";
  ModelText text{.tokenizer = Tokenizer::from_tokenizer_json(
                     read_whole_file(folder / "tokenizer.json"),
                     TokenizerConfig::from_json(R"({"bos_token": "<s>", "eos_token": "</s>"})"))};
  REQUIRE(text.tokenizer.adds_bos());
  text.chat = ChatTemplate::from_sources(
      {{.text = "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
                "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"}},
      {.texts = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, .stops = {"</s>"}});
  const auto count = [&](const Sample& sample) {
    CHECK(sample.ids[0] == text.tokenizer.bos_id());
    return std::count(sample.ids.begin(), sample.ids.end(), *text.tokenizer.bos_id());
  };
  for (const char* row :
       {R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
        R"({"prompt":"q","completion":"a"})", R"({"instruction":"q","output":"a"})",
        R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})", R"({"text":"ready"})",
        R"({"text":"<s>ready"})", R"({"segments":[{"label":true,"text":"<s>ready"}]})"}) {
    CAPTURE(row);
    CHECK(count(make_sample(row, text)) == 1);
  }
  for (const char* row :
       {R"({"prompt":"q","chosen":"a","rejected":"b"})", R"({"chosen":"it is","rejected":"it was"})"}) {
    const PairSample pair = make_pair_sample(row, text);
    CHECK(count(pair.chosen) == 1);
    CHECK(count(pair.rejected) == 1);
  }
}

TEST_CASE("row kinds: kinds are counted, and a mixture is refused unless it is allowed") {
  const std::string mixed = "{\"text\":\"t t\"}\n{\"instruction\":\"i\",\"output\":\"o\"}\n";
  const File file(mixed);
  CHECK(contains(
      refusal_of([&] { read_dataset(file.path, chat_model(), {}); }),
      "row 2: this is a row of kind Alpaca, the rows before it are text; keep one kind to a file, or set allow_mixed"));
  const DataReport report = read_dataset(file.path, chat_model(), {.allow_mixed = true}).report;
  CHECK(report.json()["kinds"] == Json{{"Alpaca", 1}, {"text", 1}});
  CHECK(contains(report.summary(), "rows by kind: 1 Alpaca, 1 text"));
}

}  // namespace sluice::test
