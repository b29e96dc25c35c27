#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "text/chat_values.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"

namespace sluice {
namespace {

using jinja::Failure;
using jinja::Interpreter;
using jinja::MarkedText;
using jinja::Value;

constexpr const char* default_now = "2024-07-26 00:00:00";  // the day that Llama 3.1's template falls back to
constexpr const char* now_argument = "strftime_now";
constexpr size_t max_source_bytes = size_t{4} << 20;

// YYYY-MM-DD or YYYY-MM-DD HH:MM:SS.
bool is_moment(const std::string& text) {
  constexpr std::string_view shape = "dddd-dd-dd dd:dd:dd";
  if (text.size() != 10 && text.size() != shape.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (shape[i] == 'd' ? !digit : text[i] != shape[i]) return false;
  }
  const int month = std::stoi(text.substr(5, 2)), day = std::stoi(text.substr(8, 2));
  return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

void check_arguments(const Json& arguments) {
  if (arguments.is_null()) return;
  check(arguments.is_object(), ErrorCode::bad_config,
        "chat_template_args: found " + arguments.dump() + ", needed an object such as {\"enable_thinking\": false}");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    check(!arguments.contains(name), ErrorCode::bad_config,
          fmt::format("chat_template_args: \"{}\" is given by the conversation; drop it", name));
  }
  if (!arguments.contains(now_argument)) return;
  const Json& now = arguments[now_argument];
  check(now.is_string() && is_moment(now.get<std::string>()), ErrorCode::bad_config,
        fmt::format("chat_template_args: {} is {}, needed a day, \"2026-01-31\" or \"2026-01-31 08:30:00\"",
                    now_argument, now.dump()));
}

std::string role_of(const Json& message) {
  return message.contains("role") && message["role"].is_string() ? message["role"].get<std::string>() : "";
}

int64_t size_of(const Json& json) {
  if (json.is_string()) return static_cast<int64_t>(json.get_ref<const std::string&>().size());
  int64_t size = 8;
  if (json.is_structured()) {
    for (const Json& item : json) size += size_of(item);
  }
  return size;
}

}  // namespace

Json to_json(const std::vector<ChatMessage>& messages) {
  Json list = Json::array();
  for (const ChatMessage& message : messages) list.push_back({{"role", message.role}, {"content", message.content}});
  return list;
}

struct ChatTemplate::Parts {
  std::vector<TemplateSource> sources;
  std::vector<jinja::Program> programs;
  TemplateTokens tokens;

  // transformers' choice: tool_use where there are tools and such a template, else default.
  size_t choose(const Json& tools) const {
    const auto find = [&](std::string_view name) {
      const auto found =
          std::find_if(sources.begin(), sources.end(), [&](const TemplateSource& s) { return s.name == name; });
      return static_cast<size_t>(found - sources.begin());
    };
    const size_t with_tools = tools.is_null() ? sources.size() : find("tool_use");
    return with_tools < sources.size() ? with_tools : find("default");
  }
};

namespace {

// One conversation on its way through one program.
class Rendering {
 public:
  Rendering(const TemplateSource& source, const jinja::Program& program, const TemplateTokens& tokens,
            const ChatInput& input, const Json& arguments)
      : source_(source), program_(program), tokens_(tokens), input_(input), arguments_(arguments) {
    limits_.work += 1000 * (size_of(input.messages) + size_of(input.tools) + size_of(input.documents));
  }

  MarkedText run() {
    std::optional<Attempt> first = attempt(CallShape::as_given);
    if (!calls_ || (first->ok() && !first->misused)) return first->take(*this);
    for (CallShape shape : {CallShape::objects, CallShape::text}) {
      Attempt other = *attempt(shape);
      if (other.ok() && !other.misused) {
        shape_ = shape;
        return other.take(*this);
      }
    }
    if (!first->ok()) return first->take(*this);
    throw Error(ErrorCode::bad_config,
                source_.where + ": the template prints the arguments of tool calls neither as text nor as an object");
  }

  // What add_generation_prompt adds at the end, in the shape that rendered.
  std::optional<std::string> generation_prompt(const std::string& text) {
    flip_ = true;
    const Attempt other = *attempt(shape_);
    flip_ = false;
    if (!other.ok()) return std::nullopt;
    const std::string& without = input_.add_generation_prompt ? other.text.text() : text;
    const std::string& with = input_.add_generation_prompt ? text : other.text.text();
    if (!with.starts_with(without)) return std::nullopt;
    return with.substr(without.size());
  }

 private:
  struct Attempt {
    MarkedText text;
    std::optional<Failure> failure;
    bool misused = false;
    bool ok() const { return !failure; }
    MarkedText take(const Rendering& rendering) {
      if (failure) rendering.fail(*failure);
      return std::move(text);
    }
  };

  [[noreturn]] void fail(const Failure& failure) const {
    throw Error(ErrorCode::bad_config, fmt::format("{}, line {}: {}", source_.where, failure.line, failure.message));
  }

  std::optional<Attempt> attempt(CallShape shape) {
    Interpreter::Context context;
    for (const auto& [name, text] : tokens_.texts) context.emplace_back(name, Value::string(text));
    std::string now = default_now;
    for (const auto& [name, value] : arguments_.items()) {
      if (name == now_argument)
        now = value.get<std::string>() + (value.get_ref<const std::string&>().size() == 10 ? " 00:00:00" : "");
      else context.emplace_back(name, to_value(value));
    }
    context.emplace_back("messages", message_values(input_.messages, shape, calls_));
    context.emplace_back("tools", to_value(input_.tools));
    context.emplace_back("documents", to_value(input_.documents));
    context.emplace_back("add_generation_prompt", Value(input_.add_generation_prompt != flip_));
    Attempt attempt;
    Interpreter interpreter(program_, context, limits_, now);
    try {
      attempt.text = interpreter.render();
    } catch (Failure& failure) {
      attempt.failure = std::move(failure);
    }
    attempt.misused = interpreter.misused_call_arguments;
    return attempt;
  }

  const TemplateSource& source_;
  const jinja::Program& program_;
  const TemplateTokens& tokens_;
  const ChatInput& input_;
  const Json& arguments_;
  jinja::Limits limits_;
  CallShape shape_ = CallShape::as_given;
  bool calls_ = false, flip_ = false;
};

}  // namespace

ChatTemplate ChatTemplate::from_sources(std::vector<TemplateSource> sources, TemplateTokens tokens) {
  auto parts = std::make_shared<Parts>();
  parts->sources = std::move(sources);
  parts->tokens = std::move(tokens);
  for (const TemplateSource& source : parts->sources) {
    check(source.text.find_first_not_of(" \t\r\n") != std::string::npos, ErrorCode::bad_file,
          source.where +
              ": the template is empty; give another one with chat_template, or remove it to train a base model on "
              "{\"prompt\", \"completion\"} rows as they are");
    check(
        source.text.size() <= max_source_bytes, ErrorCode::bad_file,
        fmt::format("{}: a template of {} bytes, the limit is {}", source.where, source.text.size(), max_source_bytes));
    try {
      parts->programs.push_back(jinja::parse(source.text));
    } catch (const jinja::SyntaxFault& fault) {
      throw Error(ErrorCode::bad_file, fmt::format("{}, line {}: {}", source.where, fault.line, fault.message));
    }
  }
  const bool has_default = parts->choose(nullptr) < parts->sources.size();
  check(has_default, ErrorCode::bad_file,
        "the model has several chat templates and none is called default; name one as a file: chat_template: FILE");
  return ChatTemplate(std::move(parts));
}

ChatTemplate ChatTemplate::with_arguments(Json arguments) const {
  check_arguments(arguments);
  ChatTemplate result = *this;
  result.arguments_ = std::move(arguments);
  return result;
}

const std::vector<TemplateSource>& ChatTemplate::sources() const { return parts_->sources; }

RenderedChat ChatTemplate::render(const ChatInput& input) const {
  check_arguments(input.arguments);
  Json arguments = arguments_.is_null() ? Json::object() : arguments_;
  if (input.arguments.is_object()) arguments.update(input.arguments);
  const size_t chosen = parts_->choose(input.tools);
  Rendering rendering(parts_->sources[chosen], parts_->programs[chosen], parts_->tokens, input, arguments);
  const MarkedText text = rendering.run();
  TurnFacts facts{.stops = parts_->tokens.stops, .by_generation_blocks = parts_->programs[chosen].has_generation};
  facts.generation_prompt = [&] { return rendering.generation_prompt(text.text()); };
  for (const Json& message : input.messages) {
    facts.assistant.push_back(role_of(message) == "assistant");
    const bool is_text = message.contains("content") && message["content"].is_string();
    facts.contents.push_back(is_text ? message["content"].get<std::string>() : "");
  }
  return {.text = text.text(), .turns = learned_turns(text, facts)};
}

}  // namespace sluice
