#include "text/chat_values.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "text/jinja/builtins.h"

namespace sluice {
namespace {

using jinja::Dict;
using jinja::Field;
using jinja::Kind;
using jinja::MarkedText;
using jinja::Origin;
using jinja::Str;
using jinja::Value;

constexpr int max_nesting = 400;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::bad_config, message); }

Value number(const Json& json) {
  constexpr double limit = 9223372036854775808.0;  // 2^63; a larger whole number has lost digits on its way here
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    refuse(fmt::format("the whole number {} does not fit 64 bits", json.get<uint64_t>()));
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  const double real = json.get<double>();
  if (std::fabs(real) >= limit && real == std::floor(real))
    refuse(fmt::format("the number {} does not fit 64 bits", real));
  return Value(real);
}

Value convert(const Json& json, Origin origin, int depth) {
  if (depth > max_nesting) refuse("values are nested too deeply");
  switch (json.type()) {
    case Json::value_t::boolean: return Value(json.get<bool>());
    case Json::value_t::string: return Value::string(MarkedText(json.get_ref<const std::string&>(), origin));
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float: return number(json);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(convert(item, origin, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items())
        dict->set(Value::string(MarkedText(key, origin)), convert(value, origin, depth + 1));
      return Value::dict(std::move(dict));
    }
    default: return {};
  }
}

// The arguments of one call in the shape asked for, marked as what they are.
Value call_arguments(const Json& arguments, Origin origin, CallShape shape, const std::string& where) {
  Json parsed = arguments;
  if (arguments.is_string()) {
    parsed = Json::parse(arguments.get_ref<const std::string&>(), nullptr, false);
    if (parsed.is_discarded()) {
      const std::string& text = arguments.get_ref<const std::string&>();
      refuse(fmt::format(
          "{}.arguments is a text that is no JSON: \"{}\"; write the arguments as an object", where,
          text.size() <= 60 ? text : text.substr(0, std::min(text.find_last_of(' ', 60), size_t{60})) + "…"));
    }
  }
  const bool as_text = shape == CallShape::text || (shape == CallShape::as_given && arguments.is_string());
  if (!as_text) {
    const Value value = to_value(parsed, origin);
    if (!value.is_dict()) return value;
    auto dict = std::make_shared<Dict>(value.dict());
    dict->call_arguments = true;
    return Value::dict(std::move(dict));
  }
  auto str = std::make_shared<Str>();
  str->text = arguments.is_string() ? MarkedText(arguments.get_ref<const std::string&>(), origin)
                                    : jinja::to_json(to_value(arguments, origin), {});
  str->call_arguments = true;
  return {Kind::string, std::move(str)};
}

Value tool_calls(const Json& list, Origin origin, CallShape shape, bool& calls, const std::string& where) {
  if (!list.is_array()) return to_value(list, origin);
  std::vector<Value> items;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string call_where = fmt::format("{}.tool_calls[{}]", where, i);
    const auto call = [&](const Json& json, const auto& self, const std::string& place) -> Value {
      if (!json.is_object()) return to_value(json, origin);
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) {
        const bool arguments = key == "arguments" && (value.is_string() || value.is_object());
        calls = calls || arguments;
        dict->set(Value::string(MarkedText(key, origin)), arguments ? call_arguments(value, origin, shape, place)
                                                          : key == "function" ? self(value, self, place + ".function")
                                                                              : to_value(value, origin));
      }
      return Value::dict(std::move(dict));
    };
    items.push_back(call(list[i], call, call_where));
  }
  return Value::list(std::move(items));
}

void refuse_media(const Json& content, const std::string& where) {
  for (const Json& part : content.is_array() ? content : Json::array()) {
    if (!part.is_object()) continue;
    const std::string type = part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>() : "";
    for (const char* media : {"image", "image_url", "audio", "input_audio", "audio_url", "video", "video_url"}) {
      if (type == media || part.contains(media))
        refuse(
            fmt::format("{}.content has a part of type \"{}\", needed text: images, audio and video are not supported; "
                        "drop the row",
                        where, media));
    }
  }
}

// transformers: reasoning_content and thinking say the same, whichever of the names the row has.
constexpr const char* reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

Field field_of(const std::string& key) {
  if (key == "role" || key == "name" || key == "tool_call_id") return Field::none;
  if (key == "tool_calls" || key == "function_call") return Field::call;
  for (const char* name : reasoning_names) {
    if (key == name) return Field::reasoning;
  }
  return Field::content;
}

Value message_value(const Json& message, int32_t index, CallShape shape, bool& calls) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object()) refuse(where + " is no object, needed {\"role\", \"content\"}");
  if (message.contains("content")) refuse_media(message["content"], where);
  auto dict = std::make_shared<Dict>();
  dict->message = index;
  const Json* reasoning = nullptr;
  for (const char* name : reasoning_names) {
    if (reasoning == nullptr && message.contains(name) && !message[name].is_null()) reasoning = &message[name];
  }
  const Origin reasoning_origin{.message = index, .field = Field::reasoning};
  if (reasoning != nullptr) dict->set(Value::string("thinking"), to_value(*reasoning, reasoning_origin));
  for (const auto& [key, value] : message.items()) {
    if (value.is_null()) continue;
    const Field field = field_of(key);
    const Origin origin = field == Field::none ? Origin{} : Origin{.message = index, .field = field};
    dict->set(Value::string(key),
              key == "tool_calls" ? tool_calls(value, origin, shape, calls, where) : to_value(value, origin));
  }
  if (reasoning != nullptr) dict->set(Value::string("reasoning_content"), to_value(*reasoning, reasoning_origin));
  return Value::dict(std::move(dict));
}

}  // namespace

Value to_value(const Json& json, Origin origin) { return convert(json, origin, 0); }

Value message_values(const Json& messages, CallShape shape, bool& calls) {
  if (!messages.is_array() || messages.empty()) refuse("messages is empty or no list, needed at least one message");
  std::vector<Value> items;
  for (size_t i = 0; i < messages.size(); ++i)
    items.push_back(message_value(messages[i], static_cast<int32_t>(i), shape, calls));
  return Value::list(std::move(items));
}

}  // namespace sluice
