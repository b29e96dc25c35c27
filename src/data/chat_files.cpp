#include "data/chat_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "data/model_text.h"
#include "io/atomic_file.h"
#include "io/json_file.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

constexpr const char* template_file = "chat_template.jinja";
constexpr const char* more_templates = "additional_chat_templates";

Json read_json(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  Json json;
  try {
    json = parse_json_line(read_text_file(path.string()));
  } catch (const Json::exception&) {  // told below
  } catch (Error& e) {
    throw e.while_doing(path.string());
  }
  check(json.is_object(), ErrorCode::bad_file, path.string() + ": found no JSON object; download it again");
  return json;
}

// One template as text, or a list of {"name", "template"}.
std::vector<TemplateSource> from_json(const Json& value, const std::string& where) {
  if (value.is_null()) return {};
  if (value.is_string()) return {{.text = value.get<std::string>(), .where = where}};
  check(value.is_array(), ErrorCode::bad_file,
        where + ": found " + value.dump().substr(0, 40) + ", needed a text or a list of {\"name\", \"template\"}");
  std::vector<TemplateSource> sources;
  for (const Json& entry : value) {
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template") && entry["template"].is_string();
    check(named, ErrorCode::bad_file,
          where + ": found an entry without name and template, needed {\"name\", \"template\"}");
    sources.push_back({entry["name"].get<std::string>(), entry["template"].get<std::string>(),
                       where + " " + entry["name"].get<std::string>()});
  }
  return sources;
}

// A token is a text, or an object that holds one.
std::string token_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return "";
}

}  // namespace

std::vector<TemplateSource> folder_templates(const std::string& folder_name) {
  const fs::path folder(folder_name);
  std::vector<TemplateSource> sources;
  if (fs::exists(folder / template_file))
    sources.push_back(
        {.text = read_text_file((folder / template_file).string()), .where = (folder / template_file).string()});
  if (fs::is_directory(folder / more_templates)) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder / more_templates)) {
      if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths)
      sources.push_back({path.stem().string(), read_text_file(path.string()), path.string()});
  }
  if (!sources.empty()) return sources;
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const Json json = read_json(folder / name);
    if (json.contains("chat_template"))
      sources = from_json(json["chat_template"], (folder / name).string() + ": chat_template");
    if (!sources.empty()) break;
  }
  return sources;
}

std::vector<TemplateSource> gguf_templates(const GgufFile& file) {
  std::vector<TemplateSource> sources;
  const auto add = [&](const std::string& name, const std::string& key) {
    const GgufValue* value = file.get(key);
    if (value == nullptr || !value->string() || value->string()->empty()) return;
    sources.push_back({name, std::string(*value->string()), file.path() + ": " + key});
  };
  add("default", "tokenizer.chat_template");
  if (const GgufValue* names = file.get("tokenizer.chat_templates")) {
    for (std::string_view name : names->strings())
      add(std::string(name), "tokenizer.chat_template." + std::string(name));
  }
  return sources;
}

std::vector<std::pair<std::string, std::string>> folder_token_texts(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> texts;
  const auto add = [&](const Json& object) {
    for (const auto& [key, value] : object.items()) {
      const bool known =
          std::any_of(texts.begin(), texts.end(), [&name = key](const auto& entry) { return entry.first == name; });
      const std::string text = std::string_view(key).ends_with("_token") ? token_text(value) : "";
      if (!known && !text.empty()) texts.emplace_back(key, text);
    }
  };
  const Json config = read_json(fs::path(folder) / "tokenizer_config.json");
  add(config);
  for (const char* own : {"extra_special_tokens", "model_specific_special_tokens"}) {
    if (config.contains(own) && config[own].is_object()) add(config[own]);
  }
  add(read_json(fs::path(folder) / "special_tokens_map.json"));
  return texts;
}

void save_chat_files(const ChatTemplate& chat, const std::string& folder_name) {
  const fs::path folder(folder_name);
  for (const TemplateSource& source : chat.sources()) {
    const bool is_default = source.name == "default";
    const bool plain = source.name.find_first_of("/\\") == std::string::npos && !source.name.starts_with(".");
    check(plain, ErrorCode::bad_file, source.where + ": the template's name \"" + source.name + "\" is no file name");
    if (!is_default) fs::create_directories(folder / more_templates);
    atomic_write_file(
        (is_default ? folder / template_file : folder / more_templates / (source.name + ".jinja")).string(),
        source.text);
  }
  if (chat.arguments().is_object() && !chat.arguments().empty())
    atomic_write_file((folder / "chat_template_args.json").string(), chat.arguments().dump(2) + "\n");
}

}  // namespace sluice
