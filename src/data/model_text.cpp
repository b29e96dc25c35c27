#include "data/model_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/gguf.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  check(file.good(), ErrorCode::bad_file, fmt::format("{}: cannot be read; it is needed here", path.string()));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<int32_t> ids_of(const Json& object, const char* key) {
  std::vector<int32_t> ids;
  if (!object.contains(key)) return ids;
  const Json& value = object[key];
  if (value.is_number_integer()) ids.push_back(value.get<int32_t>());
  for (const Json& item : value.is_array() ? value : Json::array()) {
    if (item.is_number_integer()) ids.push_back(item.get<int32_t>());
  }
  return ids;
}

void set_template(ModelText& text, std::string source) {
  text.template_source = std::move(source);
  text.chat.reset();
  const auto name = [&](std::optional<int32_t> id) {
    return id ? std::string(text.tokenizer.token_text(*id)) : std::string();
  };
  text.chat =
      ChatTemplate::from_source(text.template_source, name(text.tokenizer.bos_id()), name(text.tokenizer.eos_id()));
}

ModelText finish(Tokenizer tokenizer, std::string template_source) {
  ModelText text{.tokenizer = std::move(tokenizer)};
  text.stop_ids = text.tokenizer.stop_ids();
  try {
    if (!template_source.empty()) set_template(text, std::move(template_source));
  } catch (const Error& e) {
    text.template_problem = e.what();  // rows of ready text and `inspect` can do without
  }
  return text;
}

ModelText from_gguf(const GgufFile& file) {
  GgufVocabulary v;
  const auto get = [&](const char* key) { return file.get(std::string("tokenizer.ggml.") + key); };
  const auto string = [&](const char* key) {
    const GgufValue* value = get(key);
    return value != nullptr ? value->string().value_or(std::string_view()) : std::string_view();
  };
  const auto id = [&](const char* key) -> std::optional<int32_t> {
    const GgufValue* value = get(key);
    const std::optional<int64_t> number = value != nullptr ? value->integer() : std::nullopt;
    return number ? std::optional(static_cast<int32_t>(*number)) : std::nullopt;
  };
  const auto flag = [&](const char* key) { return get(key) != nullptr ? get(key)->boolean() : std::nullopt; };
  check(get("tokens") != nullptr, ErrorCode::bad_file,
        file.path() + ": there is no tokenizer in it (tokenizer.ggml.tokens)");
  const std::vector<std::string_view> tokens = get("tokens")->strings();
  std::vector<std::string_view> merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  if (get("merges") != nullptr) merges = get("merges")->strings();
  if (get("token_type") != nullptr) {
    for (int64_t t : get("token_type")->integers()) types.push_back(static_cast<int32_t>(t));
  }
  if (get("scores") != nullptr) {
    for (double s : get("scores")->numbers()) scores.push_back(static_cast<float>(s));
  }
  v.model = string("model");
  v.pre = string("pre");
  v.tokens = tokens;
  v.types = types;
  v.merges = merges;
  v.scores = scores;
  v.bos_id = id("bos_token_id");
  v.eos_id = id("eos_token_id");
  v.eot_id = id("eot_token_id");
  v.pad_id = id("padding_token_id");
  v.unk_id = id("unknown_token_id");
  v.add_bos = flag("add_bos_token");
  v.add_eos = flag("add_eos_token");
  v.add_space_prefix = flag("add_space_prefix");
  const GgufValue* chat = file.get("tokenizer.chat_template");
  return finish(Tokenizer::from_gguf(v), std::string(chat != nullptr ? chat->string().value_or("") : ""));
}

ModelText from_folder(const WeightSource& source) {
  const fs::path folder(source.path());
  TokenizerConfig config;
  if (fs::exists(folder / "tokenizer_config.json"))
    config = TokenizerConfig::from_json(read_text(folder / "tokenizer_config.json"));
  config.stop_ids = ids_of(source.config(), "eos_token_id");
  if (const std::optional<Json> generation = source.side_file("generation_config.json")) {
    for (int32_t id : ids_of(*generation, "eos_token_id")) {
      if (std::find(config.stop_ids.begin(), config.stop_ids.end(), id) == config.stop_ids.end())
        config.stop_ids.push_back(id);
    }
  }
  std::string chat = config.chat_template;
  if (fs::exists(folder / "chat_template.jinja")) chat = read_text(folder / "chat_template.jinja");
  return finish(Tokenizer::from_tokenizer_json(read_text(folder / "tokenizer.json"), config), std::move(chat));
}

}  // namespace

void ModelText::use_template(const std::string& path) {
  try {
    set_template(*this, read_text(path));
  } catch (Error& e) {
    throw e.while_doing(path);
  }
  template_problem.clear();
}

void ModelText::use_template_of(const std::string& adapter_folder) {
  const fs::path path = fs::path(adapter_folder) / "chat_template.jinja";
  if (fs::exists(path)) use_template(path.string());
}

const ChatTemplate& ModelText::need_chat() const {
  check(template_problem.empty(), ErrorCode::bad_config, template_problem);
  check(chat.has_value(), ErrorCode::bad_config,
        "the model has no chat template, which rows of messages need; use an instruct model, or rows whose text is "
        "ready");
  return *chat;
}

ModelText load_model_text(const WeightSource& source) {
  return source.gguf() != nullptr ? from_gguf(*source.gguf()) : from_folder(source);
}

}  // namespace sluice
