#include "data/model_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "data/chat_files.h"
#include "io/gguf.h"
#include "io/json_file.h"

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

// What the template writes after an answer, by rendering one; nothing when that is a stop token, or the template has other roles.
struct TurnEnd {
  std::string written;
  std::vector<int32_t> ids;
};
std::optional<TurnEnd> end_without_stop(const ModelText& text) {
  RenderedChat chat;
  try {
    chat = text.chat->render({.messages = to_json({{"user", "x"}, {"assistant", "y"}})});
  } catch (const Error&) {
    return std::nullopt;  // rows say so
  }
  if (chat.turns.empty() || chat.turns.back().ranges.empty() || chat.turns.back().ends_turn) return std::nullopt;
  const ByteRange range = chat.turns.back().ranges.back();
  const auto answer = static_cast<int64_t>(chat.text.find('y', static_cast<size_t>(range.begin))) + 1;
  if (answer <= 0 || answer > range.end) return std::nullopt;
  TurnEnd end{.written = chat.text.substr(static_cast<size_t>(answer), static_cast<size_t>(range.end - answer))};
  const Encoding encoding = text.tokenizer.encode(chat.text);
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.offsets[i].begin >= answer && encoding.offsets[i].end <= range.end) end.ids.push_back(encoding.ids[i]);
  }
  return end;
}

// A special token that ends a turn becomes a stop token. "<|im_end|>" in pieces cannot be one; other text, or none, is told.
void find_end_of_turn(ModelText& text, const std::vector<TemplateSource>& sources) {
  text.end_problem.clear();
  const std::optional<TurnEnd> end = end_without_stop(text);
  if (!end) return;
  const auto special =
      std::find_if(end->ids.begin(), end->ids.end(), [&](int32_t id) { return text.tokenizer.is_special(id); });
  if (special != end->ids.end()) {
    text.stop_ids.push_back(*special);
    set_templates(text, sources);
    text.notes.push_back(
        fmt::format("the chat template ends a turn with {}, which no file names as an end; here it is one, "
                    "other programs need it in eos_token_id of generation_config.json",
                    text.tokenizer.token_text(*special)));
    return;
  }
  const size_t first = end->written.find_first_not_of(" \n"), last = end->written.find_last_not_of(" \n");
  const std::string written = first == std::string::npos ? "" : end->written.substr(first, last + 1 - first);
  if (written.starts_with('<') && written.ends_with('>')) {
    text.end_problem = fmt::format(
        "the chat template ends a turn with \"{}\", which is {} tokens here and none that stops: a model trained with "
        "it would "
        "never stop; take tokenizer and template from the same model, or add the token to the tokenizer",
        written, end->ids.size());
  } else {
    text.notes.push_back(
        fmt::format("the chat template writes {} after an answer, which no token stops: a model trained with it "
                    "does not learn to stop",
                    written.empty() ? "nothing" : '"' + written + '"'));
  }
}

ModelText finish(ModelText text, std::vector<TemplateSource> sources) {
  text.stop_ids = text.tokenizer.stop_ids();
  try {
    if (!sources.empty()) {
      set_templates(text, sources);
      find_end_of_turn(text, sources);
    }
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
  if (v.model == "gpt2" && v.pre.empty()) {
    text.notes.push_back(file.path() +
                         ": tokenizer.ggml.pre is missing, so words are cut by llama.cpp's default pattern; if the "
                         "model was made with another, convert it again or use its tokenizer.json");
  }
  return finish(std::move(text), gguf_templates(file));
}

// The files of a folder that are tokenizers; the first one counts.
std::vector<std::string> tokenizer_files(const fs::path& folder) {
  std::vector<std::string> files, tiktoken;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name)) files.emplace_back(name);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tiktoken") tiktoken.push_back(entry.path().filename().string());
  }
  std::sort(tiktoken.begin(), tiktoken.end());
  check(!files.empty() || tiktoken.size() == 1, ErrorCode::bad_file,
        fmt::format("{}: found {} .tiktoken files, needed tokenizer.json, tokenizer.model or one of them",
                    folder.string(), tiktoken.size()));
  files.insert(files.end(), tiktoken.begin(), tiktoken.end());
  return files;
}

Tokenizer load_tokenizer(const std::string& path, const TokenizerConfig& config) {
  const std::string text = read_text_file(path);
  if (path.ends_with(".json")) return Tokenizer::from_tokenizer_json(text, config);
  try {
    return is_tiktoken(text) ? Tokenizer::from_tiktoken(text, config) : Tokenizer::from_sentencepiece(text, config);
  } catch (Error& error) {
    throw error.while_doing(path);
  }
}

ModelText from_folder(const WeightSource& source) {
  const fs::path folder(source.path());
  TokenizerConfig config;
  const auto text_of = [&](const char* name) { return fs::exists(folder / name) ? read_text_file(folder / name) : ""; };
  config = TokenizerConfig::from_json(text_of("tokenizer_config.json"), text_of("special_tokens_map.json"),
                                      text_of("added_tokens.json"));
  config.stop_ids = ids_of(source.config(), "eos_token_id");
  if (const std::optional<Json> generation = source.side_file("generation_config.json")) {
    for (int32_t id : ids_of(*generation, "eos_token_id")) {
      if (std::find(config.stop_ids.begin(), config.stop_ids.end(), id) == config.stop_ids.end())
        config.stop_ids.push_back(id);
    }
  }
  const std::vector<std::string> files = tokenizer_files(folder);
  ModelText text{.tokenizer = load_tokenizer(folder / files[0], config)};
  if (files.size() > 1)
    text.notes.push_back(
        fmt::format("{}: {} is read, as transformers does; {} is not", folder.string(), files[0], files[1]));
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
  const std::vector<TemplateSource> sources{{.text = read_text_file(path), .where = path}};
  set_templates(*this, sources);
  find_end_of_turn(*this, sources);
  template_problem.clear();
}

void ModelText::use_template_of(const std::string& adapter_folder) {
  const std::vector<TemplateSource> sources = folder_templates(adapter_folder);
  if (!sources.empty()) {
    set_templates(*this, sources);
    find_end_of_turn(*this, sources);
    template_problem.clear();
  }
  const std::string arguments = (fs::path(adapter_folder) / "chat_template_args.json").string();
  if (!fs::exists(arguments)) return;
  use_arguments(read_text_file(arguments));
}

void ModelText::use_arguments(const std::string& json) {
  if (json.empty()) return;
  Json arguments;
  try {
    arguments = parse_json_line(json);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::bad_config,
                "chat_template_args: found " + json + ", needed an object such as {\"enable_thinking\": false}");
  } catch (Error& e) {
    throw e.while_doing("chat_template_args");
  }
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
