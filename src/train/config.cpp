#include "train/config.h"

#include "core/device.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/nearest.h"
#include "train/objective_config.h"

namespace sluice {

const Setting* find_setting(const std::string& name, bool* by_alias) {
  for (const Setting& s : train_settings()) {
    if (s.name == name) return &s;
  }
  for (const Setting& s : train_settings()) {
    if (std::find(s.aliases.begin(), s.aliases.end(), name) == s.aliases.end()) continue;
    if (by_alias != nullptr) *by_alias = true;
    return &s;
  }
  return nullptr;
}

namespace {

[[noreturn]] void unknown(const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const Setting& s : train_settings()) {
    known.push_back(s.name);
    known.insert(known.end(), s.aliases.begin(), s.aliases.end());
  }
  throw Error(ErrorCode::bad_config,
              fmt::format("{}: unknown setting '{}'; did you mean '{}'? `sluice train --help` lists all", where, name,
                          nearest(name, known)));
}

template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void wrong_type(const Setting& s, const std::string& text, const std::string& where, const char* needed) {
  throw Error(ErrorCode::bad_config, fmt::format("{}: {} is '{}', needed {}", where, s.name, text, needed));
}

// A setting that is given twice, under one name or two.
class Once {
 public:
  void take(const std::string& name, const std::string& where) {
    const Setting* setting = find_setting(name);
    const auto [first, is_new] = seen_.try_emplace(setting == nullptr ? name : setting->name, name, where);
    check(is_new, ErrorCode::bad_config,
          fmt::format("{}: '{}' is given twice: {} has '{}' already; keep one", where, name, first->second.second,
                      first->second.first));
  }

 private:
  std::map<std::string, std::pair<std::string, std::string>> seen_;
};

// YAML 1.1 and people write 1e-4, .5 and 1_000.
std::optional<double> parse_double(std::string text) {
  std::erase(text, '_');
  if (!text.empty() && text[0] == '+') text.erase(0, 1);
  return parse_number<double>(text);
}

std::optional<int64_t> parse_integer(const std::string& text) {
  std::string digits = text;
  std::erase(digits, '_');
  if (const auto value = parse_number<int64_t>(digits)) return value;
  const std::optional<double> real = parse_double(text);  // 1e6
  if (!real || *real != std::floor(*real) || std::abs(*real) > 9e15) return std::nullopt;
  return static_cast<int64_t>(*real);
}

std::optional<bool> parse_bool(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  return std::nullopt;
}

std::vector<std::string> split_list(std::string text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<std::string> items;
  std::string item;
  for (char c : text + ",") {
    if (c != ',') {
      if (c != ' ' && c != '"' && c != '\'') item += c;
    } else if (!item.empty()) {
      items.push_back(item);
      item.clear();
    }
  }
  return items;
}

struct Assign {
  TrainConfig& config;
  const Setting& setting;
  const std::string& text;
  const std::string& where;

  void operator()(std::string TrainConfig::*field) const { config.*field = text; }
  void operator()(int64_t TrainConfig::*field) const {
    const auto value = parse_integer(text);
    if (!value) wrong_type(setting, text, where, "an integer");
    config.*field = *value;
  }
  void operator()(double TrainConfig::*field) const {
    const auto value = parse_double(text);
    if (!value || !std::isfinite(*value)) wrong_type(setting, text, where, "a number");
    config.*field = *value;
  }
  void operator()(bool TrainConfig::*field) const {
    const auto value = parse_bool(text);
    if (!value) wrong_type(setting, text, where, "true or false");
    config.*field = *value;
  }
  void operator()(std::vector<std::string> TrainConfig::*field) const { config.*field = split_list(text); }
};

class Reader {
 public:
  Reader(TrainConfig& config, std::vector<std::string>* notes) : config_(config), notes_(notes) {}

  bool is_given(const std::string& name) const { return given_.contains(name); }

  // After all that is given, in any order.
  void objective_defaults() {
    std::string taken;
    for (const ObjectiveDefault& d : sluice::objective_defaults()) {
      const std::string name = d.setting, value = d.value, where = "objective " + config_.objective;
      if (config_.objective != d.objective || is_given(name)) continue;
      if (name == "lr_schedule.warmup_ratio" && is_given("lr_schedule.warmup")) continue;
      const Setting& setting = *find_setting(name);
      std::visit(Assign{config_, setting, value, where}, setting.field);
      taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", name, value);
    }
    if (!taken.empty()) note(fmt::format("defaults of {} (docs/objectives.md): {}", config_.objective, taken));
  }

  // Two names for one strength.
  void check_scale() const {
    const auto rank = static_cast<double>(config_.rank);
    const double of_alpha = config_.alpha / (config_.rs_lora ? std::sqrt(rank) : rank);
    const bool agree = std::abs(of_alpha - config_.scale) <= 1e-6 * config_.scale;
    check(agree || !is_given("lora_parameters.alpha") || !is_given("lora_parameters.scale"), ErrorCode::bad_config,
          fmt::format("lora_parameters.alpha is {} and lora_parameters.scale is {}: alpha at rank {} is a scale of "
                      "{:.4g}; give one of the two",
                      config_.alpha, config_.scale, config_.rank, of_alpha));
  }

  void set(const std::string& name, const std::string& text, const std::string& where) {
    bool by_alias = false;
    const Setting* setting = find_setting(name, &by_alias);
    if (setting == nullptr) unknown(name, where);
    given_.insert(setting->name);
    if (by_alias) note(fmt::format("{} is called {} here", name, setting->name));
    if (setting->name == "lora_parameters.alpha")
      note("alpha is PEFT's: scale = alpha / rank (or / sqrt(rank) with rs_lora)");
    if (setting->name == "lora_parameters.scale") note("scale is mlx-lm's: a direct factor, not alpha");
    if (name == "iters") note("iters counts forward/backward passes; max_steps counts optimizer steps");
    if (setting->name == "orpo_lambda" && text == "adaptive") return set("orpo_lambda_mode", text, where);
    std::string value = text;
    if (setting->name == "lr_schedule.name") value = schedule_name(text);
    if (setting->name == "loss_type" && text == "ipo") {
      value = "ipo_mean";
      note("loss_type ipo is ipo_mean here, as TRL has it; the paper's is ipo_sum");
    }
    if (by_alias && setting->name == "fine_tune_type") {  // PEFT's use_dora
      if (const auto dora = parse_bool(text)) value = *dora ? "dora" : "lora";
    }
    if (setting->name == "truncate" || setting->name == "mask_prompt") {
      if (const auto truth = parse_bool(text)) value = *truth ? "true" : "false";
    }
    if (by_alias && setting->name == "train_on") {  // LLaMA-Factory's mask_history
      if (const auto last = parse_bool(text)) value = *last ? "last" : "all";
    }
    std::visit(Assign{config_, *setting, value, where}, setting->field);
    check(setting->name != "lora_parameters.alpha" || config_.alpha != 0, ErrorCode::bad_config,
          where + ": lora_parameters.alpha is 0, which switches the adapter off; give it above 0, or give scale");
  }

  void yaml(const YAML::Node& node, const std::string& prefix, const std::string& path) {
    for (const auto& pair : node) {
      const std::string name = prefix + pair.first.as<std::string>();
      const std::string where = fmt::format("{}:{}", path, pair.first.Mark().line + 1);
      const YAML::Node& value = pair.second;
      const bool arguments_of_template =
          value.IsMap() && (name == "chat_template_args" || name == "chat_template_kwargs");
      const bool nested = value.IsMap() && !name.ends_with("_pattern") && !arguments_of_template;
      once_.take(nested ? name + "." : name, where);  // lr_schedule is a name of its own and opens a map
      if (arguments_of_template) {
        set(name, to_json(value).dump(), where);
      } else if (value.IsMap() && name.ends_with("_pattern")) {
        std::string joined;
        for (const auto& item : value) {
          once_.take(name + "." + item.first.as<std::string>(), where);
          joined += (joined.empty() ? "" : ",") + item.first.as<std::string>() + "=" + scalar(item.second, name, where);
        }
        set(name, joined, where);
      } else if (value.IsMap()) {
        yaml(value, name + ".", path);
      } else if (name == "lr_schedule.arguments") {
        arguments(value, where);
      } else if (value.IsSequence()) {
        std::string joined;
        for (const auto& item : value) joined += (joined.empty() ? "" : ",") + scalar(item, name, where);
        set(name, joined, where);
      } else if (!value.IsNull()) {
        set(name, scalar(value, name, where), where);
      } else if (find_setting(name) == nullptr) {
        unknown(name, where);
      }
    }
  }

 private:
  void note(std::string text) {
    if (notes_ != nullptr && std::find(notes_->begin(), notes_->end(), text) == notes_->end())
      notes_->push_back(std::move(text));
  }

  static std::string scalar(const YAML::Node& node, const std::string& name, const std::string& where) {
    check(node.IsScalar(), ErrorCode::bad_config,
          fmt::format("{}: {} holds a nested value; needed a plain one", where, name));
    return node.as<std::string>();
  }

  // A YAML value as JSON: plain scalars are numbers, true and false (yes, on …) where they read so, quoted ones are text.
  static Json to_json(const YAML::Node& node) {
    if (node.IsMap()) {
      Json object = Json::object();
      for (const auto& pair : node) object[pair.first.as<std::string>()] = to_json(pair.second);
      return object;
    }
    if (node.IsSequence()) {
      Json list = Json::array();
      for (const auto& item : node) list.push_back(to_json(item));
      return list;
    }
    if (node.IsNull()) return nullptr;
    const std::string text = node.as<std::string>();
    if (node.Tag() == "!") return text;
    const Json number = Json::parse(text, nullptr, false);
    if (number.is_number()) return number;
    if (const auto truth = parse_bool(text)) return *truth;
    return text;
  }

  // The names of Hugging Face's schedulers.
  static std::string schedule_name(const std::string& text) {
    if (text == "cosine") return "cosine_decay";
    if (text == "linear") return "linear_decay";
    if (text == "constant_with_warmup") return "constant";
    return text;
  }

  // mlx-lm: [peak, steps, end] of its cosine_decay and linear_schedule. The length is that of the run here.
  void arguments(const YAML::Node& node, const std::string& where) {
    check(node.IsSequence() && node.size() >= 1 && node.size() <= 3, ErrorCode::bad_config,
          fmt::format("{}: lr_schedule.arguments needs [peak, steps, end]", where));
    set("learning_rate", node[0].as<std::string>(), where);
    if (node.size() > 2) set("lr_schedule.end", node[2].as<std::string>(), where);
    note("lr_schedule.arguments: the schedule always ends with the run; its number of steps is not used");
  }

  TrainConfig& config_;
  std::vector<std::string>* notes_;
  std::set<std::string> given_;  // names as in the table
  Once once_;                    // in the file
};

// An anchor may stand inside itself, or multiply what it names.
void check_size(const YAML::Node& node, int depth, int64_t& values, const std::string& path) {
  check(depth <= 32 && ++values <= 100000, ErrorCode::bad_config,
        path + ": nests deeper than 32 levels or has over 100,000 values; is it the right file?");
  if (node.IsMap()) {
    for (const auto& pair : node) check_size(pair.second, depth + 1, values, path);
  } else if (node.IsSequence()) {
    for (const auto& item : node) check_size(item, depth + 1, values, path);
  }
}

YAML::Node load_yaml(const std::string& path) {
  try {
    YAML::Node root = YAML::LoadFile(path);
    check(root.IsMap() || root.IsNull(), ErrorCode::bad_config,
          fmt::format("{}: needed settings as 'name: value' lines", path));
    int64_t values = 0;
    check_size(root, 0, values, path);
    return root;
  } catch (const YAML::BadFile&) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: cannot be read; give the path of a YAML file", path));
  } catch (const YAML::Exception& e) {
    throw Error(ErrorCode::bad_config, fmt::format("{}:{}:{}: {}", path, e.mark.line + 1, e.mark.column + 1, e.msg));
  }
}

}  // namespace

TrainConfig read_config(const std::string& yaml_path, const std::vector<std::pair<std::string, std::string>>& flags,
                        std::vector<std::string>* notes) {
  TrainConfig config;
  Reader reader(config, notes);
  if (!yaml_path.empty()) {
    try {
      reader.yaml(load_yaml(yaml_path), "", yaml_path);
    } catch (const YAML::Exception& e) {
      throw Error(ErrorCode::bad_config, fmt::format("{}:{}: {}", yaml_path, e.mark.line + 1, e.msg));
    }
  }
  Once once;  // of the flags, which may override the file
  for (const auto& [name, text] : flags) {
    once.take(name, "--" + name);
    reader.set(name, text, "--" + name);
  }
  reader.objective_defaults();
  reader.check_scale();
  return config;
}

std::vector<std::string> validate(const TrainConfig& config) {
  std::vector<std::string> problems;
  for (const Setting& s : train_settings()) {
    std::optional<double> number;
    if (const auto* field = std::get_if<int64_t TrainConfig::*>(&s.field)) number = static_cast<double>(config.**field);
    if (const auto* field = std::get_if<double TrainConfig::*>(&s.field)) number = config.**field;
    if (number && (*number < s.low || *number > s.high)) {
      problems.push_back(fmt::format("{} is {}; it may be {} to {}", s.name, *number, s.low, s.high));
    }
    if (const auto* field = std::get_if<std::string TrainConfig::*>(&s.field); field != nullptr && !s.choices.empty()) {
      const std::string& value = config.**field;
      if (std::find(s.choices.begin(), s.choices.end(), value) == s.choices.end()) {
        problems.push_back(fmt::format("{} is '{}'; it may be {}", s.name, value, fmt::join(s.choices, ", ")));
      }
    }
  }
  if (config.model.empty()) problems.emplace_back("model is not given; name a folder or a .gguf file");
  if (config.adapter_path.empty()) problems.emplace_back("adapter_path is empty; name a folder for the adapter");
  if (config.data.empty()) problems.emplace_back("data is not given; name a folder with a file train, or a data file");
  if ((config.iters > 0) + (config.max_steps > 0) + (config.num_epochs > 0) > 1) {
    problems.emplace_back("iters, max_steps and num_epochs all set the length of the run; give one");
  }
  if (config.tile % 256 != 0) problems.push_back(fmt::format("tile is {}; it must be a multiple of 256", config.tile));
  if (config.warmup > 0 && config.warmup_ratio > 0)
    problems.emplace_back("lr_schedule.warmup and lr_schedule.warmup_ratio are both given; give one");
  if (config.rs_lora && config.alpha == 0) problems.emplace_back("rs_lora needs lora_parameters.alpha");
  if (config.keys.size() > 1 && std::count(config.keys.begin(), config.keys.end(), "all-linear") > 0)
    problems.emplace_back("lora_parameters.keys has all-linear beside other keys; give it alone, or the others");
  for (const auto* patterns : {&config.rank_pattern, &config.alpha_pattern}) {
    for (const std::string& entry : *patterns) {
      const size_t equals = entry.find('=');
      const auto value = equals == std::string::npos ? std::nullopt : parse_double(entry.substr(equals + 1));
      const bool rank = patterns == &config.rank_pattern;
      if (!value || equals == 0 || !(*value > 0) || !std::isfinite(*value))
        problems.push_back(fmt::format("'{}' in lora_parameters.{}; needed path=number above 0, e.g. down_proj=4",
                                       entry, rank ? "rank_pattern" : "alpha_pattern"));
      else if (rank && (*value != std::floor(*value) || *value > 4096))
        problems.push_back(fmt::format("'{}' in lora_parameters.rank_pattern; needed a whole rank up to 4096", entry));
    }
  }
  try {
    if (parse_device(config.device).type == DeviceType::cpu && config.offload == "true")
      problems.emplace_back("offload: true needs device: cuda; on the CPU leave it out, the plan recomputes instead");
  } catch (const Error& e) {
    problems.emplace_back(e.what());
  }
  for (const auto& [name, bytes] : {std::pair("memory", config.memory), std::pair("host_memory", config.host_memory)}) {
    if (bytes == "auto") continue;
    try {
      parse_bytes(bytes, name);
    } catch (const Error& e) {
      problems.emplace_back(e.what());
    }
  }
  for (std::string& problem : objective_problems(config)) problems.push_back(std::move(problem));
  return problems;
}

namespace {

struct ToJson {
  const TrainConfig& config;
  template <class T>
  Json operator()(T TrainConfig::*field) const {
    return config.*field;
  }
};

}  // namespace

Json to_json(const TrainConfig& config) {
  Json object = Json::object();
  for (const Setting& s : train_settings()) {
    Json* place = &object;
    std::string name = s.name;
    if (const size_t dot = name.find('.'); dot != std::string::npos) {
      place = &object[name.substr(0, dot)];
      name = name.substr(dot + 1);
    }
    (*place)[name] = std::visit(ToJson{config}, s.field);
  }
  return object;
}

std::string to_yaml(const TrainConfig& config) {
  std::string text;
  const auto write = [&](const std::string& indent, const std::string& name, const Json& value) {
    text += fmt::format("{}{}: {}\n", indent, name, value.dump());  // JSON scalars and lists are YAML
  };
  const Json object = to_json(config);
  for (const auto& [name, value] : object.items()) {
    if (!value.is_object()) {
      write("", name, value);
      continue;
    }
    text += name + ":\n";
    for (const auto& [inner, item] : value.items()) {
      if (inner == (config.alpha > 0 ? "scale" : "alpha")) continue;
      write("  ", inner, item);
    }
  }
  return text;
}

int64_t parse_bytes(const std::string& text, const std::string& setting) {
  size_t end = 0;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) != 0 || text[end] == '.')) ++end;
  const std::optional<double> value = parse_number<double>(text.substr(0, end));
  std::string unit = text.substr(end);
  std::erase(unit, ' ');
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "K" || unit == "KiB") factor = 0x1p10;
  if (unit == "M" || unit == "MiB") factor = 0x1p20;
  if (unit == "G" || unit == "GiB") factor = 0x1p30;
  if (unit == "T" || unit == "TiB") factor = 0x1p40;
  if (unit == "KB") factor = 1e3;
  if (unit == "MB") factor = 1e6;
  if (unit == "GB") factor = 1e9;
  if (unit == "TB") factor = 1e12;
  check(value && factor > 0 && *value * factor >= 1 && *value * factor < 9e15, ErrorCode::bad_config,
        fmt::format("{} is '{}'; needed a size such as 600MiB or 10GiB", setting, text));
  return static_cast<int64_t>(*value * factor);
}

std::string settings_markdown() {
  std::string text =
      "# Settings of a run\n\nIn YAML or as `--name value`; flags win. Nested names have a dot: `lora_parameters: "
      "{rank: 16}` is\n"
      "`--lora_parameters.rank 16`. Names of mlx-lm where it has them; those of other tools are accepted. One of "
      "`iters`, `max_steps` and\n"
      "`num_epochs` sets the length; without any it is 1,000 iters. A default is that of sft where a line names others "
      "by "
      "objective ([objectives.md](objectives.md)).\n"
      "Made by `sluice train --settings`.\n\n"
      "| setting | default | what it is | also called |\n| --- | --- | --- | --- |\n";
  const TrainConfig defaults;
  for (const Setting& s : train_settings()) {
    const Json value = std::visit(ToJson{defaults}, s.field);
    std::string help = s.help;
    if (!s.choices.empty()) help += fmt::format(" ({})", fmt::join(s.choices, ", "));
    if (const std::string by = defaults_by_objective(s.name); !by.empty()) help += "; default " + by;
    text += fmt::format("| `{}` | `{}` | {} | {} |\n", s.name, value.dump(), help, fmt::join(s.aliases, ", "));
  }
  return text;
}

}  // namespace sluice
