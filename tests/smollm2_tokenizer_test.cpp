// The tokenizer and template of a real model file: SLUICE_MODEL_SMOLLM2, or where scripts/fetch_model.sh puts it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/json.h"
#include "data/model_text.h"
#include "io/weight_source.h"
#include "support/tokenizer_golden.h"
#include "support/source_dir.h"

namespace sluice::test {
namespace {

std::optional<ModelText> load_smollm2() {
  const char* given = std::getenv("SLUICE_MODEL_SMOLLM2");
  const std::string path =
      given != nullptr ? given : (source_dir() / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf").string();
  if (!std::filesystem::exists(path)) {
    MESSAGE("SKIPPED: " << path << " is not there; scripts/fetch_model.sh fetches it");
    return std::nullopt;
  }
  return load_model_text(*open_model(path));
}

TEST_CASE("SmolLM2: a megabyte of text gives the ids of Hugging Face tokenizers and of llama.cpp, and comes back") {
  const auto model = load_smollm2();
  if (!model) return;
  check_corpus("smollm2", model->tokenizer);
  for (const std::string& document : tokenizer_corpus()) {
    const Encoding plain = model->tokenizer.encode(document, {.parse_special = false});
    const bool no_special =
        std::none_of(plain.ids.begin(), plain.ids.end(), [&](int32_t id) { return model->tokenizer.is_special(id); });
    CHECK(no_special);
    CHECK(model->tokenizer.decode(plain.ids) == document);
  }
}

TEST_CASE("SmolLM2: the template is ChatML with its own system message, and a turn ends at <|im_end|>") {
  const auto model = load_smollm2();
  if (!model) return;
  const Tokenizer& tokenizer = model->tokenizer;
  CHECK(tokenizer.vocab_size() == 49152);
  CHECK(tokenizer.eos_id() == tokenizer.token_id("<|im_end|>"));
  CHECK(tokenizer.bos_id() == tokenizer.token_id("<|im_start|>"));
  CHECK_FALSE(tokenizer.adds_bos());
  REQUIRE(!tokenizer.stop_ids().empty());
  CHECK(tokenizer.stop_ids()[0] == tokenizer.eos_id());

  const RenderedChat chat = model->need_chat().render({.messages = to_json({{"user", "Hi"}, {"assistant", "Hello!"}})});
  const Encoding encoding = tokenizer.encode(chat.text, {.add_special = true});
  CHECK(encoding.ids[0] == tokenizer.bos_id());
  CHECK(encoding.ids[1] != tokenizer.bos_id());
  std::string learned;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const ByteRange& range = encoding.offsets[i];
    if (range.begin < chat.turns[0].ranges[0].begin || range.end > chat.turns[0].ranges[0].end) continue;
    learned += tokenizer.token_bytes(encoding.ids[i]);
  }
  CHECK(learned == "Hello!<|im_end|>");
}

}  // namespace
}  // namespace sluice::test
