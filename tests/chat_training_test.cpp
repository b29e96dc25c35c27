// Conversations with system message, tool call, result and reasoning through a whole run, on tiny checkpoints of a family with a template of its
// shape (tests/golden/chat): what is learned, what the adapter keeps, and that generation writes what training saw.
#include <algorithm>
#include <cmath>

#include "support/child.h"

namespace sluice::test {

namespace {

struct Family {
  const char* oracle;  // the checkpoint
  const char* chat;    // its template's shape
  const char* bos;
  std::vector<std::string> stops;  // of generation_config.json, the end of a turn first
  std::vector<std::string> special;
  const char* row;            // one conversation about PLACE
  const char* marked;         // its text, by hand from the template, with ⟦ and ⟧ around what the model is to write
  const char *args, *prompt;  // chat_template_args, and what "w?" after the system message "Be brief." is under them
};

const Family minicpm5 = {
    .oracle = "minicpm5-like",
    .chat = "family_minicpm5.jinja",
    .bos = "<s>",
    .stops = {"<|im_end|>", "</s>"},
    .special = {"<s>", "</s>", "<think>", "</think>", "<tool_response>", "</tool_response>"},
    .row = R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "w?"},
        {"role": "assistant", "reasoning_content": "I need the tool.", "content": "", "tool_calls": [{"type": "function",
          "function": {"name": "get_weather", "arguments": {"place": "PLACE"}}}]},
        {"role": "tool", "name": "get_weather", "content": "hot"},
        {"role": "assistant", "reasoning_content": "It says hot.", "content": "Hot in PLACE."}]})",
    .marked =
        "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nw?<|im_end|>\n"
        "<|im_start|>assistant\n⟦<think>\nI need the tool.\n</think>\n\n"
        "<function name=\"get_weather\"><param name=\"place\">PLACE</param></function><|im_end|>⟧\n"
        "<|im_start|>user\n<tool_response>\nhot\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n⟦<think>\nIt says hot.\n</think>\n\nHot in PLACE.<|im_end|>⟧\n",
    .args = R"({"enable_thinking":true})",
    .prompt = "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nw?<|im_end|>\n<|im_start|>assistant\n"};

// The same without reasoning: the empty one is the template's, and generation is given it too.
Family minicpm5_without_thinking() {
  Family f = minicpm5;
  f.row = R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "w?"},
      {"role": "assistant", "content": "", "tool_calls": [{"type": "function",
        "function": {"name": "get_weather", "arguments": {"place": "PLACE"}}}]},
      {"role": "tool", "name": "get_weather", "content": "hot"}, {"role": "assistant", "content": "Hot in PLACE."}]})";
  f.marked =
      "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nw?<|im_end|>\n<|im_start|>assistant\n"
      "⟦<function name=\"get_weather\"><param name=\"place\">PLACE</param></function><|im_end|>⟧\n"
      "<|im_start|>user\n<tool_response>\nhot\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\n⟦Hot in PLACE.<|im_end|>⟧\n";
  f.args = R"({"enable_thinking":false})";
  f.prompt =
      "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nw?<|im_end|>\n<|im_start|>assistant\n"
      "<think>\n\n</think>\n\n";
  return f;
}

const Family gemma4 = {
    .oracle = "gemma4-e4b-like",
    .chat = "family_gemma4.jinja",
    .bos = "<bos>",
    .stops = {"<turn|>", "<eos>", "<|tool_response>"},
    .special = {"<bos>", "<eos>", "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>",
                "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"},
    .row = R"({"tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "w?"},
        {"role": "assistant", "reasoning_content": "I need the tool.", "content": "", "tool_calls": [{"type": "function",
          "function": {"name": "get_weather", "arguments": {"place": "PLACE"}}}]},
        {"role": "tool", "name": "get_weather", "content": "hot"}, {"role": "assistant", "content": "Hot in PLACE."}]})",
    .marked =
        "<bos><|turn>system\n<|think|>Be brief."
        "<|tool>declaration:get_weather{type:<|\"|>object<|\"|>}<tool|><turn|>\n<|turn>user\nw?<turn|>\n"
        "<|turn>model\n⟦<|channel>thought\nI need the tool.\n<channel|>"
        "<|tool_call>call:get_weather{place:<|\"|>PLACE<|\"|>}<tool_call|><|tool_response>⟧"
        "response:get_weather{value:<|\"|>hot<|\"|>}<tool_response|>⟦Hot in PLACE.<turn|>⟧\n",
    .args = R"({"enable_thinking":true})",
    .prompt = "<bos><|turn>system\n<|think|>Be brief.<turn|>\n<|turn>user\nw?<turn|>\n<|turn>model\n"};

std::string about(std::string text, const std::string& place) {
  for (size_t at = 0; (at = text.find("PLACE", at)) != std::string::npos;) text.replace(at, 5, place);
  text.erase(std::remove(text.begin(), text.end(), text[0] == '{' ? '\n' : '\0'), text.end());  // a row is one line
  return text;
}

// A checkpoint of the family with the tiny byte-level tokenizer, to which the family's special tokens are added, and its template.
class Chats {
 public:
  explicit Chats(const Family& family) : family_(family) {
    const fs::path folder = run.folder / "model";
    fs::remove_all(folder);
    write_tiny_model(folder, family.oracle);
    Json tokenizer = Json::parse(read_whole_file(folder / "tokenizer.json"));
    for (const std::string& name : family.special) {
      Json token = tokenizer["added_tokens"][0];
      token["content"] = name;
      token["id"] = tokenizer["model"]["vocab"].size();
      tokenizer["model"]["vocab"][name] = token["id"];
      tokenizer["added_tokens"].push_back(token);
    }
    for (const Json& token : tokenizer["added_tokens"]) special_.emplace_back(token["content"], token["id"]);
    write_text(folder / "tokenizer.json", tokenizer.dump());
    write_text(folder / "tokenizer_config.json",
               Json({{"bos_token", family.bos}, {"eos_token", family.stops[0]}}).dump());
    Json config = Json::parse(read_whole_file(folder / "config.json"));
    config["bos_token_id"] = ids(family.bos)[0];
    config["eos_token_id"] = ids(family.stops[0])[0];
    write_text(folder / "config.json", config.dump());
    Json stops = Json::array();
    for (const std::string& stop : family.stops) stops.push_back(ids(stop)[0]);
    write_text(folder / "generation_config.json", Json({{"eos_token_id", stops}}).dump());
    write_text(folder / "chat_template.jinja", source());
    std::string rows;
    for (const char* place : {"Rom", "Oslo", "Buenos Aires"}) rows += about(family.row, place) + "\n";
    for (const char* file : {"train.jsonl", "valid.jsonl"}) write_text(run.folder / "data" / file, rows);
    run.config.max_steps = 3;
    run.config.chat_template_args = family.args;
  }

  std::string source() const { return read_whole_file(source_dir() / "tests/golden/chat" / family_.chat); }

  // What the tokenizer must give: one id for each special token, one for each other byte.
  std::vector<int32_t> ids(const std::string& text) const {
    std::vector<int32_t> result;
    for (size_t at = 0; at < text.size();) {
      const auto found = std::find_if(special_.begin(), special_.end(),
                                      [&](const auto& s) { return text.compare(at, s.first.size(), s.first) == 0; });
      const bool special = found != special_.end();
      result.push_back(special ? found->second : static_cast<uint8_t>(text[at]));
      at += special ? found->first.size() : 1;
    }
    return result;
  }

  // Tokens of a marked text, and how many of them lie between ⟦ and ⟧.
  std::pair<size_t, size_t> count(std::string marked) const {
    size_t tokens = 0, learned = 0;
    const std::string open = "⟦", close = "⟧";
    for (size_t at; (at = marked.find(open)) != std::string::npos;) {
      const size_t end = marked.find(close);
      tokens += ids(marked.substr(0, at)).size();
      learned += ids(marked.substr(at + open.size(), end - at - open.size())).size();
      marked = marked.substr(end + close.size());
    }
    return {tokens + learned + ids(marked).size(), learned};
  }

  TinyRun run;

 private:
  const Family& family_;
  std::vector<std::pair<std::string, int32_t>> special_;
};

void trains_on_chats(const Family& family) {
  CAPTURE(family.oracle);
  Chats chats(family);
  const TrainConfig& config = chats.run.config;

  // The text and what is learned of it, as written out by hand; preview and the run count the same.
  size_t all_learned = 0;
  int row = 0;
  for (const char* place : {"Rom", "Oslo", "Buenos Aires"}) {
    const std::string marked = about(family.marked, place);
    const auto [tokens, learned] = chats.count(marked);
    const Ran shown = run({"preview", "--model", config.model, "--data", config.data + "/train.jsonl", "--row",
                           std::to_string(++row), "--chat-template-args", family.args});
    CAPTURE(shown.output);
    CHECK(contains(shown.output, marked));
    CHECK(contains(shown.output, fmt::format("row {}: {} tokens, {} of them supervised", row, tokens, learned)));
    all_learned += learned;
  }
  Heard heard;
  train(config, heard);
  const fs::path out = config.adapter_path;
  const Json report = Json::parse(read_whole_file(out / "data_report.json"));
  CHECK(report["train"]["rows_kept"] == 3);
  CHECK(report["train"]["supervised_tokens"] == all_learned);
  REQUIRE(heard.reports.size() == 3);
  for (const TrainReport& step : heard.reports) CHECK(std::isfinite(step.loss));
  for (const EvalReport& eval : heard.evals) CHECK(std::isfinite(eval.loss));
  CHECK(heard.evals.back().loss < heard.evals.front().loss);

  // The adapter keeps template, arguments and the end of a turn, and generation writes with them what the model's folder no longer says.
  CHECK(read_whole_file(out / "last/chat_template.jinja") == chats.source());
  CHECK(Json::parse(read_whole_file(out / "last/chat_template_args.json")) == Json::parse(family.args));
  CHECK(Json::parse(read_whole_file(out / "last/generation_config.json"))["eos_token_id"][0] ==
        chats.ids(family.stops[0])[0]);
  fs::remove(fs::path(config.model) / "chat_template.jinja");
  const std::vector<int32_t> prompt = chats.ids(family.prompt);
  const auto generate = [&](std::vector<std::string> what) {
    std::vector<std::string> all = {"generate",     "--model", config.model, "--adapter",  (out / "last").string(),
                                    "--max-tokens", "16",      "--device",   config.device};
    all.insert(all.end(), what.begin(), what.end());
    return run(all);
  };
  const Ran chat = generate({"--system", "Be brief.", "--prompt", "w?"});
  CAPTURE(chat.output);
  CHECK(chat.code == 0);
  CHECK(contains(chat.output, fmt::format("Prompt: {} tokens", prompt.size())));
  const auto answer = [](const std::string& output) { return output.substr(0, output.find("Prompt: ")); };
  const Ran ready = generate({"--ids", fmt::format("{}", fmt::join(prompt, ","))});
  CHECK(answer(chat.output) == answer(ready.output));
}

}  // namespace

TEST_CASE("chats: MiniCPM5's shape trains with system message, tool call, result and reasoning, and generates") {
  trains_on_chats(minicpm5);
}

TEST_CASE("chats: MiniCPM5's shape trains and generates with its reasoning switched off") {
  trains_on_chats(minicpm5_without_thinking());
}

TEST_CASE("chats: Gemma 4's shape trains with system message, tool call, result and reasoning, and generates") {
  trains_on_chats(gemma4);
}

// A long document and a short answer.
TEST_CASE("training: truncate left trains on the end of long prompts with all of their answers") {
  TinyRun run;
  std::string rows;
  for (int i = 0; i < 8; ++i) {
    std::string words;
    for (int w = 0; w < 240; ++w) words += fmt::format("{}w{}", w > 0 ? " " : "", w * 7 % 97);
    rows += Json({{"messages",
                   {{{"role", "user"}, {"content", words}},
                    {{"role", "assistant"}, {"content", fmt::format("the end {}", i)}}}}})
                .dump() +
            "\n";
  }
  for (const char* file : {"train.jsonl", "valid.jsonl"}) write_text(run.folder / "data" / file, rows);
  run.config.max_seq_length = 101;
  run.config.max_steps = 2;
  CHECK(contains(message_of(run.config), "max_seq_length"));  // nothing is left where nothing is cut
  run.config.truncate = "left";
  Heard heard;
  train(run.config, heard);
  const Json report = Json::parse(read_whole_file(fs::path(run.config.adapter_path) / "data_report.json"))["train"];
  CAPTURE(report.dump());
  CHECK(report["rows_kept"] == 8);
  CHECK(report["tokens"] == 8 * 101);
  CHECK(report["supervised_tokens"] == 8 * 10);  // "the end 0" and <|im_end|>
  CHECK(heard.reports.size() == 2);
  CHECK(heard.evals.back().loss < heard.evals.front().loss);
  // The same rows, cut by hand to their last words: bytes of the template are <|im_start|>user\n and so on.
  TinyRun cut;
  cut.config.max_steps = 2;
  std::string short_rows;
  for (size_t begin = 0, end; begin < rows.size(); begin = end + 1) {
    end = rows.find('\n', begin);
    Json row = Json::parse(rows.substr(begin, end - begin));
    const std::string words = row["messages"][0]["content"];
    const size_t others = 1 + 5 + 1 + 1 + 1 + 10 + 9 + 1 + 1;  // all that is not the user's text
    row["messages"][0]["content"] = words.substr(words.size() - (101 - others));
    short_rows += row.dump() + "\n";
  }
  for (const char* file : {"train.jsonl", "valid.jsonl"}) write_text(cut.folder / "data" / file, short_rows);
  Heard same;
  train(cut.config, same);
  CHECK(adapter_bytes(run.config) == adapter_bytes(cut.config));
}

}  // namespace sluice::test
