#include "text/gguf_pre_tokenizers.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

// The patterns are those of the models' tokenizer.json; which name means which is llama.cpp's (llama-vocab.cpp).
std::vector<GgufPreTokenizer> make_known() {
  const std::string gpt2(gpt2_pattern);
  const std::string contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  const std::string spaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string words = R"(|[^\r\n\p{L}\p{N}]?\p{L}+)";
  const std::string symbols = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)";
  const std::string llama3 = contractions + words + R"(|\p{N}{1,3})" + symbols + spaces;
  const std::string qwen2 = contractions + words + R"(|\p{N})" + symbols + spaces;
  const std::string minicpm5 = contractions + words + R"(|\p{N}+)" + symbols + spaces;
  const std::string qwen35 =
      contractions + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" + spaces;
  // Words by letter case: "HTTPServer" is "HTTPServer", "camelCase" is "camel", "Case".
  const std::string before = R"([^\r\n\p{L}\p{N}]?)", upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                    lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  const auto cased = [&](const std::string& tail) {
    return before + upper + "*" + lower + "+" + tail + "|" + before + upper + "+" + lower + "*" + tail;
  };
  const std::string cased_symbols = R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)";
  const std::string gpt4o = cased(contractions + "?") + R"(|\p{N}{1,3})" + cased_symbols + spaces;
  const std::string tekken = cased("") + R"(|\p{N})" + cased_symbols + spaces;
  const std::string deepseek =
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" +
      spaces;
  const std::string deepseek_cjk = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
  return {
      {.names = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "modern-bert", "trillion", "granite-docling",
                 "a.x-4.0", "mellum", "gigachat"},
       .patterns = {gpt2}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       .patterns = {R"(\p{N})", gpt2}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       .patterns = {llama3},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, .patterns = {llama3}},
      {.names = {"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "solar-open", "grok-2"},
       .patterns = {qwen2}},
      {.names = {"qwen35"}, .patterns = {qwen35}},
      {.names = {"minicpm5"}, .patterns = {R"(\p{N}{1,3})", minicpm5}, .ignore_merges = true},
      {.names = {"gpt-4o", "llama4", "kanana2", "minimax-m2"}, .patterns = {gpt4o}},
      {.names = {"tekken"}, .patterns = {tekken}, .ignore_merges = true, .add_bos = true},
      {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"}, .patterns = {R"(\p{N}{1,3})", deepseek_cjk, deepseek}},
      {.names = {"default"}, .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", gpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
}

const std::vector<GgufPreTokenizer>& known() {
  static const std::vector<GgufPreTokenizer> list = make_known();
  return list;
}

}  // namespace

const GgufPreTokenizer& gguf_pre_tokenizer(std::string_view name) {
  const std::string_view wanted = name.empty() ? "default" : name;
  std::vector<std::string_view> names;
  for (const GgufPreTokenizer& entry : known()) {
    if (std::find(entry.names.begin(), entry.names.end(), wanted) != entry.names.end()) return entry;
    names.insert(names.end(), entry.names.begin(), entry.names.end());
  }
  std::sort(names.begin(), names.end());
  std::string list;
  for (std::string_view known_name : names) list += (list.empty() ? "" : ", ") + std::string(known_name);
  throw Error(ErrorCode::bad_file, "tokenizer.ggml.pre: found \"" + std::string(name) + "\", needed one of " + list +
                                       "; use the model's tokenizer.json instead");
}

}  // namespace sluice
