#include "data/model_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "data/chat_files.h"
#include "io/gguf.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

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

void set_templates(ModelText& text, std::vector<TemplateSource> sources) {
  TemplateTokens tokens{.texts = text.token_texts};
  for (int32_t id : text.stop_ids) tokens.stops.emplace_back(text.tokenizer.token_text(id));
  const Json arguments = text.chat ? text.chat->arguments() : Json();
  text.chat.reset();
  text.chat = ChatTemplate::from_sources(std::move(sources), std::move(tokens)).with_arguments(arguments);
}

ModelText finish(ModelText text, std::vector<TemplateSource> sources) {
  text.stop_ids = text.tokenizer.stop_ids();
  try {
    if (!sources.empty()) set_templates(text, std::move(sources));
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
  ModelText text{.tokenizer = Tokenizer::from_gguf(v)};
  for (const auto& [name, id] :
       {std::pair{"bos_token", v.bos_id}, {"eos_token", v.eos_id}, {"pad_token", v.pad_id}, {"unk_token", v.unk_id}}) {
    if (id) text.token_texts.emplace_back(name, text.tokenizer.token_text(*id));
  }
  return finish(std::move(text), gguf_templates(file));
}

ModelText from_folder(const WeightSource& source) {
  const fs::path folder(source.path());
  TokenizerConfig config;
  if (fs::exists(folder / "tokenizer_config.json"))
    config = TokenizerConfig::from_json(read_text_file(folder / "tokenizer_config.json"));
  config.stop_ids = ids_of(source.config(), "eos_token_id");
  if (const std::optional<Json> generation = source.side_file("generation_config.json")) {
    for (int32_t id : ids_of(*generation, "eos_token_id")) {
      if (std::find(config.stop_ids.begin(), config.stop_ids.end(), id) == config.stop_ids.end())
        config.stop_ids.push_back(id);
    }
  }
  ModelText text{.tokenizer = Tokenizer::from_tokenizer_json(read_text_file(folder / "tokenizer.json"), config)};
  text.token_texts = folder_token_texts(source.path());
  return finish(std::move(text), folder_templates(source.path()));
}

}  // namespace

std::string read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check(file.good(), ErrorCode::bad_file, fmt::format("{}: cannot be read; it is needed here", path));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void ModelText::use_template(const std::string& path) {
  set_templates(*this, {{.text = read_text_file(path), .where = path}});
  template_problem.clear();
}

void ModelText::use_template_of(const std::string& adapter_folder) {
  std::vector<TemplateSource> sources = folder_templates(adapter_folder);
  if (!sources.empty()) {
    set_templates(*this, std::move(sources));
    template_problem.clear();
  }
  const std::string arguments = (fs::path(adapter_folder) / "chat_template_args.json").string();
  if (!fs::exists(arguments)) return;
  use_arguments(read_text_file(arguments));
}

void ModelText::use_arguments(const std::string& json) {
  if (json.empty()) return;
  const Json arguments = Json::parse(json, nullptr, false);
  check(!arguments.is_discarded(), ErrorCode::bad_config,
        "chat_template_args: found " + json + ", needed an object such as {\"enable_thinking\": false}");
  Json all = need_chat().arguments();
  if (all.is_object() && arguments.is_object()) all.update(arguments);
  else all = arguments;
  chat = chat->with_arguments(std::move(all));
}

std::string ModelText::template_identity() const {
  if (!chat) return "";
  std::string text;
  for (const TemplateSource& source : chat->sources()) text += source.name + '\0' + source.text + '\0';
  return text + chat->arguments().dump();
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
