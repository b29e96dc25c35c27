#include "eval/chunk_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "io/json_file.h"

namespace sluice {

namespace {

std::vector<ChunkCase> read_cases(const std::string& path, int64_t limit) {
  std::ifstream file(path);
  check(file.good(), ErrorCode::bad_file, path + ": cannot be read; give a .jsonl file of chunk cases");
  std::vector<ChunkCase> cases;
  int64_t row = 0;
  for (std::string line; std::getline(file, line) && (limit == 0 || static_cast<int64_t>(cases.size()) < limit);) {
    ++row;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      cases.push_back(chunk_case(parse_json_line(line)));
    } catch (const Json::exception& e) {
      throw Error(ErrorCode::bad_file, fmt::format("{}:{}: not JSON: {}", path, row, e.what()));
    } catch (Error& e) {
      throw e.while_doing(fmt::format("{}:{}", path, row));
    }
  }
  check(!cases.empty(), ErrorCode::bad_file, path + ": there is no case in it");
  return cases;
}

}  // namespace

ChunkScore ChunkAnswers::score() const {
  std::vector<ChunkScore> scores;
  for (const Row& row : rows) scores.push_back(row.score);
  return mean(scores);
}

ChunkTask::ChunkTask(const Model& model, const ModelText& text, ThreadPool& pool, const ChunkTaskOptions& options)
    : model_(model), text_(text), pool_(pool), cases_(read_cases(options.data, options.limit)) {
  generator_.dtype = options.dtype;
  int64_t longest = 0;
  for (const ChunkCase& c : cases_) {
    const RenderedChat chat = text.need_chat().render({.messages = to_json(c.prompt), .add_generation_prompt = true});
    requests_.push_back({.prompt = text.tokenizer.encode(chat.text, {.add_special = true}).ids,
                         .stop_ids = text.stop_ids,
                         .max_new_tokens = options.max_new_tokens});
    generator_.prompts.push_back(static_cast<int64_t>(requests_.back().prompt.size()));
    longest = std::max(longest, generator_.prompts.back());
  }
  generator_.max_sequences = std::min<int64_t>(options.batch_size, static_cast<int64_t>(requests_.size()));
  generator_.max_tokens = longest + options.max_new_tokens + 1;
}

int64_t ChunkTask::bytes(const AdapterLayout& layout) const {
  GeneratorOptions options = generator_;
  options.adapters = {layout};
  const int64_t host_logits = options.max_sequences * model_.config.vocab_size * 4;
  return Generator::planned_bytes(pool_, model_, options) + host_logits;
}

ChunkAnswers ChunkTask::run(const Adapter& adapter) const {
  GeneratorOptions options = generator_;
  if (!adapter.empty()) options.adapters = {adapter.layout()};
  Generator generator(pool_, model_, options);
  const std::vector<GenerateResult> results = generator.generate(requests_, adapter);
  ChunkAnswers answers;
  for (size_t i = 0; i < cases_.size(); ++i) {
    const std::string answer = to_valid_utf8(text_.tokenizer.decode(results[i].tokens, /*skip_special=*/true));
    answers.rows.push_back({score_chunks(cases_[i], answer), answer, results[i].finish == FinishReason::stop});
  }
  return answers;
}

}  // namespace sluice
