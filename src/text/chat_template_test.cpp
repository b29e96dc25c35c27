// Chat templates against Jinja itself: tests/oracle/make_chat_golden.py.
#include "text/chat_template.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "text/jinja_outline.h"
#include "text/tokenizer.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

const Json& golden() {
  static const Json json = [] {
    std::ifstream file(sluice::test::source_dir() / "tests/golden/chat_templates.json");
    return Json::parse(file);
  }();
  return json;
}

std::vector<ChatMessage> messages_of(const Json& chat) {
  std::vector<ChatMessage> messages;
  for (const Json& message : chat.at("messages")) messages.push_back({message.at("role"), message.at("content")});
  return messages;
}

ChatTemplate load(const Json& one) {
  return ChatTemplate::from_source(one.at("source").get<std::string>(), one.at("bos").get<std::string>(),
                                   one.at("eos").get<std::string>());
}

std::string part(const RenderedChat& chat, ByteRange range) {
  return chat.text.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

ErrorCode code_of(auto&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::bug;
}

TEST_CASE("render: every known shape of template gives what Jinja gives, and refuses what it refuses") {
  size_t num_texts = 0, num_errors = 0;
  for (const Json& one : golden().at("templates")) {
    const ChatTemplate chat = load(one);
    for (const Json& example : one.at("chats")) {
      CAPTURE(one.at("name"));
      CAPTURE(example.dump());
      const auto messages = messages_of(example);
      const bool prompt = example.at("add_generation_prompt");
      if (example.contains("error")) {
        CHECK(code_of([&] { chat.render(messages, prompt); }) == ErrorCode::bad_config);
        ++num_errors;
      } else {
        CHECK(chat.render(messages, prompt).text == example.at("text"));
        ++num_texts;
      }
    }
  }
  CHECK(num_texts > 150);
  CHECK(num_errors > 20);
}

TEST_CASE(
    "FieldD6_render: the supervised ranges are each answer and its end-of-turn token, without markup in the template") {
  size_t num_ranges = 0;
  for (const Json& one : golden().at("templates")) {
    const ChatTemplate chat = load(one);
    for (const Json& example : one.at("chats")) {
      if (!example.contains("supervised")) continue;
      CAPTURE(one.at("name"));
      CAPTURE(example.dump());
      const RenderedChat rendered = chat.render(messages_of(example), example.at("add_generation_prompt"));
      std::vector<ByteRange> expected;
      for (const Json& range : example.at("supervised")) expected.push_back({range.at(0), range.at(1)});
      CHECK(rendered.supervised == expected);
      num_ranges += expected.size();
    }
  }
  CHECK(num_ranges > 100);
}

TEST_CASE("render: an empty answer is supervised at its end-of-turn token") {
  for (const Json& one : golden().at("templates")) {
    const RenderedChat rendered = load(one).render(std::vector<ChatMessage>{{"user", "q"}, {"assistant", ""}});
    REQUIRE(rendered.supervised.size() == 1);
    CHECK(part(rendered, rendered.supervised[0]) == one.at("eos"));
  }
}

TEST_CASE("from_source: a template of another shape is refused with what is in the way") {
  for (const Json& one : golden().at("refused")) {
    std::string message;
    try {
      ChatTemplate::from_source(one.at("source").get<std::string>(), "", "");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_file);
      message = error.what();
    }
    const std::string why = one.at("why") == "a trimmed turn" ? "the program" : one.at("why");
    CHECK_MESSAGE(message.find(why) != std::string::npos, message);
  }
  CHECK(code_of([] { ChatTemplate::from_source(" \n", "", ""); }) == ErrorCode::bad_file);
}

TEST_CASE("render: unknown roles and no messages are refused") {
  const ChatTemplate chat = load(golden().at("templates").at(0));
  CHECK(code_of([&] { chat.render(std::vector<ChatMessage>{{"tool", "x"}}); }) == ErrorCode::bad_config);
  CHECK(code_of([&] { chat.render(std::vector<ChatMessage>{{"User", "x"}}); }) == ErrorCode::bad_config);
  CHECK(code_of([&] { chat.render({}); }) == ErrorCode::bad_config);
}

TEST_CASE("from_source: damaged templates are refused") {
  for (const char* source : {"{% for m in messages %}", "{{ 'a }}", "{{ a", "{% if a %}{% else %}{% else %}{% endif %}",
                             "{% endif %}", "{# x"}) {
    CAPTURE(source);
    CHECK(code_of([&] { ChatTemplate::from_source(source, "", ""); }) == ErrorCode::bad_file);
  }
}

TEST_CASE("jinja_outline: white space is controlled as Jinja does with trim_blocks and lstrip_blocks") {
  CHECK(to_string(jinja_outline("a\n  {% if x %}\n b {{ 'c' }}\n{%- endif -%}\n d\n")) ==
        R"({'a\n'}{if x}{' b c'}{endif}{'d'})");
  CHECK(to_string(jinja_outline("x {%+ if y %}z{# gone #}\n{% endif +%}\n")) == R"({'x '}{if y}{'z'}{endif})");
  CHECK(to_string(jinja_outline("{{ a[\"b\"]['c'] + 'x' ~ \"y\" + (d | trim) }}")) == "{a.b.c+'xy'+(d|trim)}");
  CHECK(to_string(jinja_outline("{{ '}}' }}{{ \"it's %}\" }}")) == R"({'}}it\'s %}'})");
}

TEST_CASE("prune_outline: keeps what a plain conversation can reach") {
  const auto pruned = [](const char* source) { return to_string(prune_outline(jinja_outline(source))); };
  CHECK(pruned("{% if tools %}a{% else %}b{% endif %}") == "{'b'}");
  CHECK(pruned("{% if not tools is none and x %}a{% elif x %}b{% endif %}c") == "{if x}{'b'}{endif}{'c'}");
  CHECK(pruned("{% if message.role == 'tool' %}a{% elif message.role != 'user' or y %}b{% else %}c{% endif %}") ==
        "{if message.role!='user' or y}{'b'}{else}{'c'}{endif}");
  CHECK(pruned("{% if message.role == 'user' or message.role == 'system' %}a{% elif message.role == 'assistant' %}b{% "
               "else %}c{% endif %}") == "{if message.role=='user' or message.role=='system'}{'a'}{else}{'b'}{endif}");
}

}  // namespace
}  // namespace sluice
