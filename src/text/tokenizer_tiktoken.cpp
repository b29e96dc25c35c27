// Files of tiktoken: a line for each token, its bytes in base64 and its rank, which is its id. The pattern that cuts a text into
// words and the special tokens are not in the file; they stand in the code of the models' makers, one scheme for each vocabulary.
#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "text/base64.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/tokenizer_parts.h"

namespace sluice {
namespace {

struct Scheme {
  std::string_view name;
  int32_t num_ranks;
  std::string_view words;  // its name among the pre-tokenizers of GGUF
  bool compose = false;    // the text is taken in NFC
  bool add_bos = false;
  std::vector<AddedToken> specials;
};

std::vector<AddedToken> tokens_from(int32_t id, const std::vector<std::string>& texts) {
  std::vector<AddedToken> tokens;
  for (const std::string& text : texts) tokens.push_back({.id = id++, .text = text, .special = true});
  return tokens;
}

std::vector<std::string> numbered(std::vector<std::string> texts, const std::string& name, int first, int end) {
  for (int i = first; i < end; ++i) texts.push_back("<|" + name + std::to_string(i) + "|>");
  return texts;
}

// Llama 4: llama_models/llama4/tokenizer.py of meta-llama/llama-models.
std::vector<std::string> llama4_specials() {
  const std::string reserved = "_reserved_special_token_", text = "text_post_train" + reserved,
                    vision = "vision" + reserved, reasoning = "reasoning" + reserved;
  std::vector<std::string> list;
  const auto put = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) list.push_back("<|" + std::string(name) + "|>");
  };
  put({"begin_of_text", "end_of_text", "fim_prefix", "fim_middle", "fim_suffix"});
  put({"header_start", "header_end", "eom", "eot", "step"});
  list = numbered(std::move(list), text, 0, 6);
  put({"python_start", "python_end", "finetune_right_pad"});
  list = numbered(std::move(list), text, 8, 69);
  put({"image_start", "image_end"});
  list = numbered(std::move(list), vision, 0, 2);
  put({"tile_x_separator", "tile_y_separator"});
  list = numbered(std::move(list), vision, 2, 6);
  put({"image"});
  list = numbered(std::move(list), vision, 6, 7);
  put({"patch"});
  list = numbered(std::move(list), vision, 7, 1048);
  list = numbered(std::move(list), reasoning, 0, 8);
  put({"reasoning_thinking_start", "reasoning_thinking_end"});
  const int left = 2048 - static_cast<int>(list.size());
  return numbered(std::move(list), "reserved_special_token_", 0, left);
}

// Llama 3: llama/tokenizer.py of meta-llama/llama3. Qwen: tokenization_qwen.py of Qwen-7B. The others: tiktoken_ext/openai_public.py.
std::vector<Scheme> make_schemes() {
  const std::string reserved = "reserved_special_token_";
  std::vector<std::string> llama = numbered({"<|begin_of_text|>", "<|end_of_text|>"}, reserved, 0, 4);
  for (const char* text : {"<|start_header_id|>", "<|end_header_id|>"}) llama.emplace_back(text);
  llama = numbered(std::move(llama), reserved, 4, 5);
  llama.emplace_back("<|eot_id|>");
  llama = numbered(std::move(llama), reserved, 5, 251);
  std::vector<AddedToken> cl100k =
      tokens_from(100257, {"<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"});
  cl100k.push_back({.id = 100276, .text = "<|endofprompt|>", .special = true});
  return {
      {.name = "llama3",
       .num_ranks = 128000,
       .words = "llama-bpe",
       .add_bos = true,
       .specials = tokens_from(128000, llama)},
      {.name = "llama4",
       .num_ranks = 200000,
       .words = "llama4",
       .add_bos = true,
       .specials = tokens_from(200000, llama4_specials())},
      {.name = "qwen",
       .num_ranks = 151643,
       .words = "qwen2",
       .compose = true,
       .specials = tokens_from(151643, numbered({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, "extra_", 0, 205))},
      {.name = "r50k_base", .num_ranks = 50256, .words = "gpt-2", .specials = tokens_from(50256, {"<|endoftext|>"})},
      {.name = "cl100k_base", .num_ranks = 100256, .words = "llama-bpe", .specials = cl100k},
      {.name = "o200k_base",
       .num_ranks = 199998,
       .words = "gpt-4o",
       .specials = {{.id = 199999, .text = "<|endoftext|>", .special = true},
                    {.id = 200018, .text = "<|endofprompt|>", .special = true}}},
  };
}

const Scheme& scheme_of(std::string_view name, int32_t num_ranks) {
  static const std::vector<Scheme> schemes = make_schemes();
  std::string list;
  for (const Scheme& scheme : schemes) {
    if (name.empty() ? scheme.num_ranks == num_ranks : scheme.name == name) return scheme;
    list += (list.empty() ? "" : ", ") + std::to_string(scheme.num_ranks) + " (" + std::string(scheme.name) + ")";
  }
  throw Error(ErrorCode::bad_file, "tiktoken file: found " + std::to_string(num_ranks) + " ranks, needed one of " +
                                       list + ", whose patterns are known; use the model's tokenizer.json instead");
}

// "aGVsbG8= 15339"
void read_line(std::string_view line, size_t number, Vocabulary& vocabulary) {
  const size_t space = line.find(' ');
  const std::string_view rank = line.substr(space == std::string_view::npos ? line.size() : space + 1);
  const auto bytes = base64_decode(line.substr(0, std::min(space, line.size())));
  int32_t id = -1;
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), id);
  check(bytes && !bytes->empty() && error == std::errc() && end == rank.data() + rank.size(), ErrorCode::bad_file,
        "tiktoken file: line " + std::to_string(number) + " is no base64 and rank; download it again");
  vocabulary.add(id, byte_level_encode(*bytes));
}

Vocabulary read_ranks(std::string_view file) {
  Vocabulary vocabulary;
  size_t number = 0;
  for (size_t begin = 0; begin < file.size(); ++number) {
    const size_t end = std::min(file.find('\n', begin), file.size());
    std::string_view line = file.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) read_line(line, number + 1, vocabulary);
    begin = end + 1;
  }
  return vocabulary;
}

std::unique_ptr<const TokenModel> make_model(Vocabulary vocabulary) {
  const int32_t count = vocabulary.size();
  auto model =
      std::make_unique<Bpe>(std::move(vocabulary), Bpe::Settings{.bytes_as_symbols = true, .ignore_merges = true});
  for (int byte = 0; byte < 256; ++byte) {
    check(model->byte_token(static_cast<uint8_t>(byte)) >= 0, ErrorCode::bad_file,
          "tiktoken file: byte " + std::to_string(byte) + " has no token, needed all 256; the file is damaged");
  }
  model->reserve_merges(static_cast<size_t>(count));
  for (int32_t id = 0; id < count; ++id) {
    if (model->vocabulary().has(id)) model->add_merge_into(id);
  }
  return model;
}

}  // namespace

bool is_tiktoken(std::string_view file) {
  const std::string_view line = file.substr(0, std::min(file.find('\n'), size_t{4096}));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
         base64_decode(line.substr(0, space)) && line[space + 1] >= '0' && line[space + 1] <= '9';
}

Tokenizer Tokenizer::from_tiktoken(std::string_view file, const TokenizerConfig& config, std::string_view scheme_name) {
  auto parts = std::make_shared<Parts>();
  Vocabulary vocabulary = read_ranks(file);
  const Scheme& scheme = scheme_of(scheme_name, vocabulary.count());
  if (scheme.compose) parts->normalizer = {{.kind = NormalizerStep::Kind::nfc, .unicode_9 = false}};
  for (const std::string& pattern : gguf_pre_tokenizer(scheme.words).patterns)
    parts->pre_tokenizer.push_back({.pattern = Regex(pattern)});
  parts->model = make_model(std::move(vocabulary));
  const bool named = std::any_of(config.tokens.begin(), config.tokens.end(), [](const auto& t) { return t.id >= 0; });
  std::vector<AddedToken> added = named ? std::vector<AddedToken>() : scheme.specials;
  if (!scheme_name.empty() && !added.empty()) {  // a small file of the scheme: its specials follow its ranks
    for (size_t i = 0; i < added.size(); ++i) added[i].id = parts->model->vocabulary().size() + static_cast<int32_t>(i);
  }
  add_further(config.tokens, parts->model->vocabulary(), added);
  for (const AddedToken& token : added) parts->added.add(token.id, token.text);
  for (int32_t id = 0; id < parts->size(); ++id) {
    const std::string text(parts->text(id));
    parts->decoded.push_back(parts->added.has(id) ? text : byte_level_decode(text).value_or(text));
  }
  TokenizerConfig whole = config;
  if (!whole.bos_token && scheme.add_bos) whole.bos_token = "<|begin_of_text|>";
  if (!whole.eos_token && whole.stop_ids.empty())
    whole.eos_token = scheme.add_bos ? "<|end_of_text|>" : "<|endoftext|>";
  if (!whole.add_bos_token && scheme.add_bos) whole.add_bos_token = true;
  apply_config(whole, *parts);
  parts->finish(std::move(added));
  return Tokenizer(std::move(parts));
}

}  // namespace sluice
