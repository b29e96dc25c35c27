// What the keys of a row say: weights, content that would be lost; rows made to fit; a file split in two.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "data/batch.h"
#include "data/preference.h"
#include "data/rated.h"
#include "support/letters.h"

namespace sluice::test {

namespace {

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

Json two_turns() {
  return {{"messages",
           {message("user", "q1"), message("assistant", "BAD"), message("user", "q2"), message("assistant", "GOOD")}}};
}

std::string refusal(const Json& row) {
  const File file(row.dump() + "\n");
  try {
    read_dataset(file.path, chat_model(), {});
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string rows_of(const std::vector<Json>& rows) {
  std::string text;
  for (const Json& row : rows) text += row.dump() + "\n";
  return text;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string decoded(const Sample& sample, const ModelText& text = chat_model()) {
  return text.tokenizer.decode(sample.ids);
}

Json pair(const std::string& prompt, const std::string& chosen, const std::string& rejected) {
  return {{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}};
}

}  // namespace

TEST_CASE("rows: a message that says so is not learned, in any of the ways that people say it") {
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"weight", 0},
                                                                            {"weight", 0.0},
                                                                            {"train", false},
                                                                            {"training", false},
                                                                            {"trainable", false},
                                                                            {"loss", false},
                                                                            {"loss_mask", 0},
                                                                            {"loss_weight", 0.0}}) {
    CAPTURE(key);
    Json row = two_turns();
    row["messages"][1][key] = value;
    row["messages"][3][key] = value.is_boolean() ? Json(true) : Json(1);
    const Sample sample = make_sample(row.dump(), chat_model());
    CHECK(learned(sample, chat_model()) == "GOOD<|im_end|>");
    CHECK(sample.weights.empty());
    // Also where every other token is learned.
    CHECK_FALSE(contains(learned(make_sample(row.dump(), chat_model(), TrainOn::everything), chat_model()), "BAD"));
  }
}

TEST_CASE("rows: weights of messages and of the row multiply, and reach the batch token by token") {
  Json row = two_turns();
  row["messages"][1]["weight"] = 0.25;
  row["weight"] = 2;
  const Sample sample = make_sample(row.dump(), chat_model());
  CHECK(contains(preview(sample, chat_model().tokenizer), "⟦BAD<|im_end|>⟧×0.5\n"));
  CHECK(contains(preview(sample, chat_model().tokenizer), "⟦GOOD<|im_end|>⟧×2\n"));
  const Batch batch = pack({&sample});
  CHECK(batch.weights == std::vector<float>{0.5F, 0.5F, 0.5F, 0.5F, 2, 2, 2, 2, 2});
  CHECK(batch.total_weight() == 12);
}

TEST_CASE(
    "rows: a row of weight 0 is dropped and counted; a train key on a user's message that asks for more is refused") {
  Json silent = two_turns();
  silent["train"] = false;
  const File file(rows_of({two_turns(), silent}));
  const DataReport report = read_dataset(file.path, chat_model(), {}).report;
  CHECK(report.rows_kept == 1);
  CHECK(report.rows_without_targets == 1);
  Json asks = two_turns();
  asks["messages"][0]["train"] = true;
  CHECK(contains(refusal(asks), "row 1: messages[0] says that it is learned, and is a user message"));
  Json masks = two_turns();
  masks["messages"][0]["train"] = false;
  CHECK(learned(make_sample(masks.dump(), chat_model()), chat_model()) == "BAD<|im_end|>GOOD<|im_end|>");
  CHECK_THROWS_WITH_AS(make_sample(masks.dump(), chat_model(), TrainOn::everything), doctest::Contains("mask_prompt"),
                       Error);
}

TEST_CASE("rows: values and keys of weights that cannot be meant are refused by key") {
  const auto with = [](const char* key, const Json& value) {
    Json row = two_turns();
    row["messages"][1][key] = value;
    return refusal(row);
  };
  CHECK(contains(with("weight", -1), "messages[1].weight is -1, needed"));
  CHECK(
      contains(with("weight", 1e-60), "messages[1].weight is 1e-60, needed true, false, 0 or a number from 0.000001"));
  CHECK(contains(with("weight", "0"), "messages[1].weight is \"0\", needed"));
  CHECK(contains(with("weight", 1e7), "messages[1].weight is 10000000.0, needed"));
  CHECK(contains(with("loss", 0.5), "messages[1].loss is 0.5, needed true, false, 1 or 0"));
  CHECK(contains(with("loss_mask", Json::array({0, 1})), "messages[1].loss_mask is [0,1]"));
  CHECK(contains(with("masked", true), "messages[1].masked is not known"));
  CHECK(contains(with("train_detail", Json::array({1})), "messages[1].train_detail is not known"));
  Json row = two_turns();
  row["messages"][1]["weight"] = 0;
  row["messages"][1]["train"] = true;
  CHECK(contains(refusal(row), "messages[1].weight is 0 and train is true: they contradict"));
  row = two_turns();
  row["loss"] = 2.31;
  CHECK(contains(refusal(row), "loss is 2.31, needed true, false, 1 or 0"));
}

TEST_CASE("rows: what nests deeper than any conversation is refused with its row, wherever it stands") {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  const std::string row = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  for (const std::string& line :
       {deep, row + ", \"tools\": " + deep + "}", row + ", \"chat_template_kwargs\": {\"a\": " + deep + "}}"})
    CHECK_THROWS_WITH_AS(make_sample(line, chat_model()), doctest::Contains("nests deeper than 64 levels"), Error);
  ModelText text = chat_model();
  CHECK_THROWS_WITH_AS(text.use_arguments("{\"a\": " + deep + "}"), doctest::Contains("nests deeper than 64 levels"),
                       Error);
}

TEST_CASE("rows: only the last answer is learned where the run says so") {
  CHECK(learned(make_sample(two_turns().dump(), chat_model(), TrainOn::last_answer), chat_model()) == "GOOD<|im_end|>");
  Json row = two_turns();
  row["messages"].push_back(message("user", "thanks"));
  CHECK(learned(make_sample(row.dump(), chat_model(), TrainOn::last_answer), chat_model()) == "GOOD<|im_end|>");
}

TEST_CASE("rows: keys that carry what the model would not see are refused by name, their empty forms are read") {
  const std::pair<const char*, Json> of_row[] = {{"functions", Json::array({Json{{"name", "f"}}})},
                                                 {"images", Json::array({"cat.png"})},
                                                 {"system", "You speak French."},
                                                 {"history", Json::array({Json::array({"q", "a"})})},
                                                 {"input", "more"},
                                                 {"documents", Json::array({"d"})},
                                                 {"reasoning", "hmm"},
                                                 {"audio", "a.wav"}};
  for (const auto& [key, value] : of_row) {
    CAPTURE(key);
    Json row = two_turns();
    row[key] = value;
    CHECK(contains(refusal(row), std::string("row 1: ") + key + " is "));
    for (const Json& empty : {Json(), Json(""), Json::array(), Json::object()}) {
      row[key] = empty;
      CHECK(refusal(row).empty());
    }
  }
  for (const char* key : {"function_call", "images", "audio", "thought"}) {
    CAPTURE(key);
    Json row = two_turns();
    row["messages"][1][key] = {{"name", "f"}};
    CHECK(contains(refusal(row), std::string("row 1: messages[1].") + key + " is "));
    row["messages"][1][key] = Json::object();
    CHECK(refusal(row).empty());
  }
}

namespace {

// A template in the manner of those with tools: definitions first, calls as JSON, reasoning of the last turn alone.
const ModelText& tool_model() {
  static const ModelText text = [] {
    ModelText model = Letters().model(false);
    model.chat = ChatTemplate::from_sources(
        {{.text = "{%- if tools %}{{- '<|im_start|>tools ' + (tools | tojson) + '<|im_end|>' }}{% endif %}"
                  "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
                  "{%- if m.reasoning_content and loop.last %}{{- '<think>' + m.reasoning_content + '</think>' }}{% "
                  "endif %}"
                  "{%- if m.content %}{{- m.content | trim }}{% endif %}"
                  "{%- for c in m.tool_calls or [] %}{{- '<call>' + c.function.name + ' ' + (c.function.arguments | "
                  "tojson) + '</call>' }}"
                  "{%- endfor %}{{- '<|im_end|>\\n' }}{% endfor %}"
                  "{%- if mood is defined %}{{- mood }}{% endif %}"
                  "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"}},
        {.texts = {{"eos_token", "<|im_end|>"}}, .stops = {"<|im_end|>"}});
    return model;
  }();
  return text;
}

Json call(const Json& arguments) {
  return {
      {"role", "assistant"},
      {"content", nullptr},
      {"tool_calls", Json::array({{{"type", "function"}, {"function", {{"name", "add"}, {"arguments", arguments}}}}})}};
}

}  // namespace

TEST_CASE("FieldT3_ a tool call is learned to its last token, whether its arguments are text or an object") {
  const Json tool = {{"type", "function"}, {"function", {{"name", "add"}, {"description", "Adds."}}}};
  const Json object = Json::parse(R"({"b": 1, "a": [2.0, 1e-7]})");
  std::vector<Sample> samples;
  for (const Json& arguments : {object, Json(object.dump()), Json(R"({"b": 1, "a": [2.0, 1e-7]})")}) {
    const Json row = {{"messages",
                       {message("user", "1 + 2?"),
                        call(arguments),
                        {{"role", "tool"}, {"content", "3"}},
                        message("assistant", "three")}},
                      {"tools", Json::array({tool})}};
    samples.push_back(make_sample(row.dump(), tool_model()));
  }
  CHECK(samples[0].ids == samples[1].ids);
  CHECK(samples[0].ids == samples[2].ids);
  CHECK(samples[0].supervised == samples[1].supervised);
  const std::string shown = preview(samples[0], tool_model().tokenizer);
  CHECK(
      contains(shown, "assistant\n⟦<call>add {\"b\": 1, \"a\": [2.0, 1e-07]}</call><|im_end|>⟧\n<|im_start|>tool\n3"));
  CHECK(contains(shown, "assistant\n⟦three<|im_end|>⟧"));
  CHECK(contains(shown, "\"description\": \"Adds.\""));
  CHECK_THROWS_AS(make_sample(Json({{"messages", {message("user", "x"), call("no JSON {")}}}).dump(), tool_model()),
                  Error);
}

TEST_CASE("FieldD14_ what a template leaves out or changes is counted by name, and refused where it cannot be meant") {
  Json first = message("assistant", "one"), last = message("assistant", " two ");
  first["reasoning_content"] = "earlier thoughts";
  last["reasoning_content"] = "last thoughts";
  const Json row = {{"messages", {message("user", "q"), first, message("user", "r"), last}}};
  const File file(rows_of({row, two_turns()}));
  const Dataset data = read_dataset(file.path, tool_model(), {});
  CHECK(data.report.left_out == std::map<std::string, int64_t>{{"messages[].reasoning_content", 1}});
  CHECK(data.report.rows_rewritten == 1);  // " two " is trimmed
  CHECK(contains(data.report.summary(), "the chat template does not write, in whole or in part: messages[].reasoning"));
  const std::string shown = preview(data.samples[0], tool_model().tokenizer);
  CHECK(contains(shown, "⟦one<|im_end|>⟧"));
  CHECK(contains(shown, "⟦<think>last thoughts</think>two<|im_end|>⟧"));
  // The plain ChatML template knows neither tools nor calls nor documents.
  Json with_tools = two_turns();
  with_tools["tools"] = Json::array({{{"name", "add"}}});
  CHECK(contains(refusal(with_tools),
                 "row 1: tools is [{\"name\":\"add\"}], and the model's chat template does not write tools"));
  Json with_documents = two_turns();
  with_documents["documents"] = Json::array({{{"text", "d"}}});
  CHECK(contains(refusal(with_documents), "row 1: documents is "));
  Json with_call = two_turns();
  with_call["messages"][1]["tool_calls"] = call(Json::object())["tool_calls"];
  CHECK(
      contains(refusal(with_call), "messages[1].tool_calls: the model's chat template does not write the call of add"));
  Json with_parts = two_turns();
  with_parts["messages"][0]["content"] = Json::array({{{"type", "text"}, {"text", "q"}}});
  CHECK_FALSE(refusal(with_parts).empty());
}

TEST_CASE("rows: arguments of the template stand in the row under transformers' and mlx-lm's name") {
  Json row = two_turns();
  for (const char* key : {"chat_template_kwargs", "chat_template_args"}) {
    Json with = row;
    with[key] = {{"mood", "glad"}};
    CHECK(decoded(make_sample(with.dump(), tool_model())).ends_with("glad"));
  }
  row["chat_template_kwargs"] = {{"mood", "glad"}};
  row["chat_template_args"] = {{"mood", "sad"}};
  CHECK_THROWS_WITH_AS(make_sample(row.dump(), tool_model()), doctest::Contains("differ; keep one"), Error);
  row["chat_template_args"] = 3;
  CHECK_THROWS_WITH_AS(make_sample(row.dump(), tool_model()), doctest::Contains("needed an object"), Error);
}

TEST_CASE(
    "FieldT4_ generation blocks: tokens that overlap are learned, nothing after; a turn without a token is counted") {
  ModelText text = Letters().model(false);
  text.chat = ChatTemplate::from_sources(
      {{.text =
            "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% else %}{{ m.content }}{% endif %}{% endfor %}"}},
      {.texts = {{"eos_token", "<|im_end|>"}}, .stops = {"<|im_end|>"}});
  const auto shown = [&](const std::string& first, const std::string& answer, const std::string& then) {
    Json row = {
        {"messages",
         {message("assistant", first), message("user", "u"), message("assistant", answer), message("user", then)}}};
    return preview(make_sample(row.dump(), text), text.tokenizer);
  };
  CHECK(shown("A", "", "xyz") == "Auxyz");  // nothing predicts the first token
  CHECK(shown("Ab", " ", "xyz") == "A⟦b⟧u⟦ ⟧xyz");
  CHECK(shown("A", "b \n", "xyz") == "Au⟦b \n⟧xyz");
  CHECK(shown("A", "c", "a") == "Au⟦c⟧a");
  CHECK(shown("A", "ca", "b") == "Au⟦cab⟧");  // "ab" is one token
  const File file(
      Json({{"messages", {message("assistant", "A"), message("user", "u"), message("assistant", "b")}}}).dump() + "\n");
  const DataReport report = read_dataset(file.path, text, {}).report;
  CHECK(report.answers_without_token == 1);
  CHECK(report.supervised == 1);
}

TEST_CASE("rows: what a message says anyway may be said again; other keys are counted by name") {
  Json row = two_turns();
  row["messages"].insert(row["messages"].begin(), message("system", "You speak French."));
  row["system"] = "You speak French.";
  row["id"] = 7;
  row["source"] = "web";
  row["messages"][1]["timestamp"] = "now";
  const File file(rows_of({row, row}));
  const DataReport report = read_dataset(file.path, chat_model(), {}).report;
  CHECK(report.rows_kept == 2);
  CHECK(report.unread_keys ==
        std::map<std::string, int64_t>{{"id", 2}, {"source", 2}, {"system", 2}, {"messages[].timestamp", 2}});
  CHECK(contains(report.summary(), "keys that are not read: id (2 rows)"));
  CHECK(report.json()["unread_keys"]["source"] == 2);
}

TEST_CASE("rows: preference and rated rows follow the same rules, and know no weights between 0 and 1") {
  const auto message_of = [](const Json& row) {
    const File file(row.dump() + "\n");
    try {
      if (row.contains("label")) read_rated(file.path, chat_model(), {});
      else read_preferences(file.path, chat_model(), {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Json pairs = pair("q", "a", "b"), rated = {{"prompt", "q"}, {"completion", "a"}, {"label", true}};
  for (Json row : {pairs, rated}) {
    row["context"] = "Be brief.";
    CHECK(contains(message_of(row), "row 1: context is "));
    row["context"] = "";
    row["score_chosen"] = 3;
    CHECK(message_of(row).empty());
    row["weight"] = 0.5;
    CHECK(contains(message_of(row), "a weight is 0.5; pairs and rated answers know only 0 and 1"));
    row["weight"] = 0;
    CHECK(contains(message_of(row), "1 have no supervised token"));
  }
}

TEST_CASE("preference: pairs of equal tokens are dropped and counted, also when they are equal only after the cut") {
  const File file(rows_of({pair("q", "x", "x"), pair("q", "x", "y")}));
  const PreferenceData data = read_preferences(file.path, chat_model(), {});
  CHECK(data.pairs.size() == 1);
  CHECK(data.report.pairs_equal == 1);
  CHECK(contains(data.report.summary(), "1 pairs dropped, chosen and rejected are the same tokens"));

  const std::string same(200, 'x');
  const File cut(rows_of({pair("q", same + "A", same + "B")}));
  CHECK(read_preferences(cut.path, chat_model(), {}).pairs.size() == 1);
  CHECK_THROWS_WITH_AS(read_preferences(cut.path, chat_model(), {.max_seq_length = 100, .truncate = Truncate::end}),
                       doctest::Contains("none of 1 rows can be trained on: 1 have two equal answers"), Error);

  const Json conversation = {message("user", "q"), message("assistant", "a")};
  const File lists(rows_of({{{"chosen", conversation}, {"rejected", conversation}}}));
  CHECK_THROWS_WITH_AS(read_preferences(lists.path, chat_model(), {}), doctest::Contains("1 have two equal answers"),
                       Error);
}

TEST_CASE("preference: pairs that share no prompt are kept and counted") {
  const File file(rows_of({pair("a", "bcd", "cd")}));  // "ab" is one token
  const PreferenceData data = read_preferences(file.path, base_model(), {});
  CHECK(data.report.pairs_apart == 1);
  CHECK(contains(data.report.summary(), "1 pairs share no prompt"));
}

TEST_CASE("preference: a prompt beside whole conversations has to be what they begin with") {
  const Json a = {message("user", "q"), message("assistant", "a")},
             b = {message("user", "q"), message("assistant", "b")};
  CHECK_NOTHROW(make_pair_sample(Json{{"prompt", "q"}, {"chosen", a}, {"rejected", b}}.dump(), chat_model()));
  CHECK_THROWS_WITH_AS(
      make_pair_sample(Json{{"prompt", "another"}, {"chosen", a}, {"rejected", b}}.dump(), chat_model()),
      doctest::Contains("prompt is not what the conversations"), Error);
}

TEST_CASE("rated: rows that call the same answer good and bad are dropped and counted") {
  const auto row = [](const char* answer, bool label) {
    return Json{{"prompt", "q"}, {"completion", answer}, {"label", label}};
  };
  const File file(rows_of({row("x", true), row("y", true), row("x", false), row("z", false)}));
  const RatedData data = read_rated(file.path, chat_model(), {});
  REQUIRE(data.rows.size() == 2);
  CHECK(data.report.rows_contradicted == 2);
  CHECK(data.rows[0].row == 2);
  CHECK(learned(data.rows[0].mismatched, chat_model()) == "z<|im_end|>");
}

TEST_CASE("FieldD10_ a prompt cut on either side keeps the frame and the answer, at every length") {
  Json row = {
      {"messages", {message("system", "S"), message("user", "one <|im_start|> two"), message("assistant", "answer")}}};
  const File file(row.dump() + "\n");
  const Sample whole = make_sample(row.dump(), chat_model());
  const auto length = static_cast<int64_t>(whole.ids.size());
  row["messages"][1]["content"] = "";
  const auto frame = static_cast<int64_t>(make_sample(row.dump(), chat_model()).ids.size());
  const std::string before = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n",
                    after = "<|im_end|>\n<|im_start|>assistant\n⟦answer<|im_end|>⟧\n";
  for (const Truncate side : {Truncate::left, Truncate::right}) {
    for (int64_t limit = frame + 1; limit <= length; ++limit) {
      CAPTURE(limit);
      const Dataset data = read_dataset(file.path, chat_model(), {.max_seq_length = limit, .truncate = side});
      REQUIRE(data.samples.size() == 1);
      CHECK(static_cast<int64_t>(data.samples[0].ids.size()) == limit);
      const std::string shown = preview(data.samples[0], chat_model().tokenizer);
      REQUIRE(shown.starts_with(before));
      REQUIRE(shown.ends_with(after));
      const std::string kept = shown.substr(before.size(), shown.size() - before.size() - after.size());
      const std::string text = "one <|im_start|> two";
      CHECK((side == Truncate::left ? text.ends_with(kept) : text.starts_with(kept)));
      CHECK(data.report.prompts_cut == (limit < length ? 1 : 0));
      CHECK(data.report.tokens_cut == length - limit);
    }
    CHECK_THROWS_WITH_AS(read_dataset(file.path, chat_model(), {.max_seq_length = frame, .truncate = side}),
                         doctest::Contains("1 are longer than max_seq_length"), Error);
  }
}

TEST_CASE("FieldD11_ both answers keep the same prompt, what was cut is counted and said") {
  const File file(rows_of({pair(std::string(300, 'p'), std::string(200, 'c'), std::string(150, 'r')),
                           pair("short", "x", "y"), pair("p", std::string(400, 'c'), "r")}));
  for (const Truncate side : {Truncate::left, Truncate::right}) {
    const PreferenceData data = read_preferences(file.path, chat_model(), {.max_seq_length = 240, .truncate = side});
    REQUIRE(data.pairs.size() == 2);
    const PairSample& cut = data.pairs[0];
    CHECK(cut.chosen.ids.size() == 240);
    CHECK(cut.rejected.ids.size() == 190);
    const auto without = [](const Sample& s, const std::string& answer) {
      const std::string text = decoded(s);
      return text.substr(0, text.find(answer));
    };
    CHECK(without(cut.chosen, std::string(200, 'c')) == without(cut.rejected, std::string(150, 'r')));
    CHECK(learned(cut.chosen, chat_model()) == std::string(200, 'c') + "<|im_end|>");
    CHECK(learned(cut.rejected, chat_model()) == std::string(150, 'r') + "<|im_end|>");
    CHECK(data.report.prompts_cut == 1);
    CHECK(data.report.rows_too_long == 1);
    CHECK(contains(data.report.summary(), "1 rows have a shorter prompt, to fit max_seq_length 240: "));
    CHECK(contains(data.report.summary(), "1 rows dropped, longer than max_seq_length 240 even with a prompt of one"));
  }
}

TEST_CASE("rows: a prompt is cut as one text over the user's messages before the first answer, between characters") {
  const Json row = {{"messages",
                     {message("user", "aaaa\xE2\x82\xAC"), message("assistant", "old"), message("user", "bbbb"),
                      message("assistant", "new")}}};
  const File file(row.dump() + "\n");
  const auto length = static_cast<int64_t>(make_sample(row.dump(), chat_model()).ids.size());
  const auto text_at = [&](int64_t less, Truncate side, TrainOn train_on) {
    const Dataset data = read_dataset(file.path, chat_model(),
                                      {.max_seq_length = length - less, .truncate = side, .train_on = train_on});
    return decoded(data.samples[0]);
  };
  CHECK(contains(text_at(2, Truncate::left, TrainOn::all_answers), "user\naa\xE2\x82\xAC<"));
  CHECK(contains(text_at(1, Truncate::right, TrainOn::all_answers), "user\naaaa<"));  // the euro sign is three tokens
  CHECK(contains(text_at(1, Truncate::right, TrainOn::last_answer), "user\nbbb<"));
  CHECK(contains(text_at(8, Truncate::left, TrainOn::last_answer), "user\n<|im_end|>"));
  CHECK(contains(text_at(8, Truncate::left, TrainOn::last_answer), "user\nbbb<"));
  CHECK(contains(text_at(2, Truncate::left, TrainOn::everything), "user\naa\xE2\x82\xAC<"));
}

TEST_CASE("rows: a file of another kind is called by it, and a missing one says what lies beside") {
  const auto said = [](const std::string& path) {
    try {
      read_dataset(path, chat_model(), {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const File arrow("ARROW1"), zip("PK\x03\x04\x14");
  CHECK(contains(said(arrow.path), "is an Arrow file, needed JSON lines, a JSON list or CSV; turn it into JSON lines"));
  CHECK(contains(said(zip.path), "is a ZIP archive, needed JSON lines, a JSON list or CSV; unpack it"));
}

TEST_CASE("rows: a file is split by prompt and seed, whatever the order of its rows, and nothing is in both parts") {
  std::vector<Json> rows;
  for (int i = 0; i < 400; ++i) {
    for (int k = 0; k < 2; ++k)
      rows.push_back({{"prompt", "q" + std::to_string(i)}, {"completion", "a" + std::to_string(k)}});
  }
  const auto part = [&](const std::vector<Json>& list, uint64_t seed, bool held_out) {
    const File file(rows_of(list));
    const Dataset data = read_dataset(file.path, chat_model(),
                                      {.split = {.held_out_fraction = 0.2, .seed = seed, .held_out = held_out}});
    CHECK(data.report.rows_read + data.report.rows_elsewhere == static_cast<int64_t>(list.size()));
    std::set<std::string> texts;
    for (const Sample& s : data.samples) texts.insert(decoded(s));
    return texts;
  };
  const std::set<std::string> train = part(rows, 1, false), held_out = part(rows, 1, true);
  CHECK(train.size() + held_out.size() == rows.size());
  CHECK(held_out.size() % 2 == 0);  // both answers of a prompt
  // 400 prompts at 0.2: 80 expected, standard deviation 8
  CHECK(std::abs(static_cast<double>(held_out.size()) / 2 - 80) < 5 * 8);
  CHECK(part(rows, 2, true) != held_out);
  std::reverse(rows.begin(), rows.end());
  CHECK(part(rows, 1, true) == held_out);
  const std::vector<Json> one = {rows[0], rows[1]};
  const File file(rows_of(one));
  const auto read = [&](bool side) {
    read_dataset(file.path, chat_model(), {.split = {.held_out_fraction = 0.2, .seed = 1, .held_out = side}});
  };
  int refused = 0;
  for (bool side : {false, true}) {
    try {
      read(side);
    } catch (const Error& e) {
      refused += contains(e.what(), "valid_fraction 0.2 puts all of 2 rows on one side") ? 1 : 0;
    }
  }
  CHECK(refused == 1);
}

}  // namespace sluice::test
