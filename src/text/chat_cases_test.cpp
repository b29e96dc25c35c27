// Field cases of chat templates that are not a comparison of texts alone.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/golden.h"
#include "support/tokenizer_golden.h"
#include "text/chat_template.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

ChatTemplate make(const std::string& source, std::vector<std::string> stops = {"<|im_end|>"}) {
  return ChatTemplate::from_sources(
      {{.text = source, .where = "chat.jinja"}},
      {.texts = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, .stops = std::move(stops)});
}

std::string rendered(const std::string& source, const Json& messages, const Json& arguments = nullptr) {
  return make(source).render({.messages = messages, .arguments = arguments}).text;
}

// What the model learns, one string for each answer.
std::vector<std::string> learned(const RenderedChat& chat) {
  std::vector<std::string> all;
  for (const LearnedTurn& turn : chat.turns) {
    std::string text;
    for (const ByteRange& range : turn.ranges)
      text += chat.text.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    all.push_back(text);
  }
  return all;
}

std::string family(const std::string& name) {
  return read_text((golden_dir() / "chat" / ("family_" + name + ".jinja")).string());
}

Json question() { return Json::parse(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])"); }

Json call_with(const Json& arguments) {
  Json messages = Json::parse(
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function",
                                   "function": {"name": "f"}}]}])");
  messages[1]["tool_calls"][0]["function"]["arguments"] = arguments;
  return messages;
}

}  // namespace

TEST_CASE("FieldT2_ a template that cannot be read is refused with file, line and construct") {
  int64_t refused = 0;
  for (const auto& entry : fs::directory_iterator(golden_dir() / "chat")) {
    const std::string name = entry.path().stem().string();
    if (!name.starts_with("malformed_") || entry.path().extension() != ".jinja") continue;
    CAPTURE(name);
    const std::string message = bad_file_message([&] { make(read_text(entry.path().string())); });
    CHECK(message.starts_with("chat.jinja, line "));
    ++refused;
  }
  CHECK(refused >= 12);
  CHECK_THROWS_WITH_AS(make("a\n{% include 'other' %}"),
                       doctest::Contains("chat.jinja, line 2: {% include %} is not supported"), Error);
  CHECK_THROWS_WITH_AS(make("{{ x | frobnicate }}"), "chat.jinja, line 1: No filter named 'frobnicate'.", Error);
  CHECK_THROWS_WITH_AS(rendered("{{ messages | pprint }}", question()), "chat.jinja, line 1: No filter named 'pprint'.",
                       Error);
}

TEST_CASE(
    "FieldT3_ arguments of a tool call as text and as object give the text for the shape that the template wants") {
  const Json object = Json::parse(R"({"b": 1.0, "a": "é"})");
  const std::string text = R"({"b": 1.0, "a": "é"})";
  const std::string loop = "{% for m in messages if m.tool_calls %}{% set f = m.tool_calls[0].function %}";
  for (const std::string& source : {loop + "<call>{{ f.name }}{{ f.arguments | tojson }}<|im_end|>{% endfor %}",
                                    loop + "<call>{{ f.name + f.arguments }}<|im_end|>{% endfor %}",
                                    loop + "<call>{{ f.name ~ f.arguments }}<|im_end|>{% endfor %}"}) {
    CAPTURE(source);
    for (const Json& arguments : {object, Json(text)}) {
      const RenderedChat chat = make(source).render({.messages = call_with(arguments)});
      CHECK(chat.text == "<call>f" + text + "<|im_end|>");
      CHECK(chat.turns[0].ends_turn);
      CHECK(learned(chat)[0].ends_with(text + "<|im_end|>"));
    }
  }
  const std::string walks = loop + "{% for k, v in f.arguments.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}";
  CHECK(rendered(walks, call_with(object)) == "b=1.0;a=é;");
  CHECK(rendered(walks, call_with(text)) == "b=1.0;a=é;");
  CHECK_THROWS_WITH_AS(rendered(walks, call_with("{not json")),
                       doctest::Contains("messages[1].tool_calls[0].function.arguments is a text that is no JSON"),
                       Error);
}

TEST_CASE("FieldT3_ a tool call is learned with the mark that opens it, to its end of turn") {
  for (const auto& [name, opening] : {std::pair{"qwen25", "\n<tool_call>\n{\"name\": \"f\""},
                                      {"qwen3", "<tool_call>\n{\"name\": \"f\""},
                                      {"hermes", "\n<tool_call>\n{\"name\": \"f\""}}) {
    CAPTURE(name);
    const RenderedChat chat = make(family(name)).render({.messages = call_with(Json::parse(R"({"x": 1})"))});
    CHECK(learned(chat)[0].ends_with("</tool_call><|im_end|>"));
    CHECK(learned(chat)[0].find("<tool_call>") != std::string::npos);
  }
}

// Gemma 4 writes results into the turn of their calls, and looks the tool's name up there. The model stops before it: the program that ran it writes it.
TEST_CASE("chat template: a result within the answer's turn names its call again, which is not learned") {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}<e>{% elif m.role == 'assistant' %}"
      "{% if not m.tool_calls %}{{ m.content }}<e>{% else %}<m>{% for c in m.tool_calls %}<c>{{ c.function.name }}<d>"
      "{% endfor %}{% for k in range(loop.index, messages | length) %}{% if messages[k].role == 'tool' %}<r>response:"
      "{% for c in m.tool_calls %}{% if c.id == messages[k].tool_call_id %}{{ c.function.name }}{% endif %}{% endfor "
      "%}="
      "{{ messages[k].content }}</r>{% endif %}{% endfor %}{% endif %}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<m>{% endif %}";
  const Json messages = Json::parse(R"([{"role": "user", "content": "q"},
      {"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "first", "arguments": {}}},
        {"id": "2", "type": "function", "function": {"name": "second", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "1", "content": "one"}, {"role": "tool", "tool_call_id": "2", "content": "two"},
      {"role": "assistant", "content": "done"}])");
  const RenderedChat chat = make(source, {"<e>", "<r>"}).render({.messages = messages});
  CHECK(chat.text == "<u>q<e><m><c>first<d><c>second<d><r>response:first=one</r><r>response:second=two</r>done<e>");
  CHECK(learned(chat) == std::vector<std::string>{"<c>first<d><c>second<d><r>", "done<e>"});
}

TEST_CASE("FieldT4_ a generation block that is empty, blank or at the very start is learned as far as it goes") {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else "
      "%}{{ m.content }}{% endif %}{% endfor %}";
  for (const std::string content : {"", " ", "a \n", "é", "x"}) {
    CAPTURE(content);
    const Json messages = {{{"role", "assistant"}, {"content", content}}, {{"role", "user"}, {"content", "later"}}};
    const RenderedChat chat = make(source).render({.messages = messages});
    REQUIRE(chat.turns.size() == 1);
    CHECK(learned(chat)[0] == content);
    CHECK(chat.turns[0].ranges.size() == (content.empty() ? 0 : 1));
  }
}

TEST_CASE("FieldD1_ a template that writes BOS writes it once") {
  const RenderedChat chat = make(family("mistral7b"), {"</s>"}).render({.messages = question()});
  CHECK(chat.text.find("<s>") == 0);
  CHECK(chat.text.find("<s>", 1) == std::string::npos);
}

TEST_CASE("FieldD14_ a reasoning that the template drops is not learned, one that it keeps is, with its marks") {
  const Json messages = Json::parse(
      R"([{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1", "reasoning_content": "r1"},
                                        {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2", "reasoning_content": "r2"}])");
  const std::vector<std::string> answers = learned(make(family("qwen3")).render({.messages = messages}));
  CHECK(answers == std::vector<std::string>{"a1<|im_end|>", "<think>\nr2\n</think>\n\na2<|im_end|>"});
  const Json inside = Json::parse(
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nr\n</think>\n\na"}])");
  CHECK(learned(make(family("qwen3")).render({.messages = inside})) ==
        std::vector<std::string>{"<think>\nr\n</think>\n\na<|im_end|>"});
}

TEST_CASE("FieldI9_ a row without reasoning learns no marks of reasoning that the template adds") {
  CHECK(learned(make(family("qwen3")).render({.messages = question()})) == std::vector<std::string>{"a<|im_end|>"});
}

TEST_CASE("chat template: an answer's own text is told from the same words elsewhere") {
  const Json messages = Json::parse(
      R"([{"role": "user", "content": "yes"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "yes<|im_end|>yes"},
                                        {"role": "assistant", "content": "<|im_end|>yes"}])");
  CHECK(learned(make(family("chatml")).render({.messages = messages})) ==
        std::vector<std::string>{"yes<|im_end|>", "<|im_end|>yes<|im_end|>"});
}

TEST_CASE("chat template: one that does not end is stopped in one line, whatever it does") {
  for (const char* source :
       {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v }}",
        "{{ 'x' * 99999999999 }}", "{{ [0] * 99999999999 }}", "{{ '%99999999999d' % 1 }}",
        "{{ 'x'.center(99999999999) }}", "{{ 'a'|indent(99999999999) }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}"}) {
    CAPTURE(source);
    CHECK_THROWS_WITH_AS(rendered(source, question()), doctest::Contains("chat.jinja, line 1: "), Error);
  }
  CHECK_THROWS_AS(make("{{ " + std::string(100'000, '(') + "1"), Error);
  CHECK_THROWS_AS(make("{{ 1" + std::string(100'000, '+') + " 1 }}"), Error);
}

TEST_SUITE("full") {
  TEST_CASE("chat template: a text is held to its limit while it is made") {
    for (const char* source : {"{% set x = 'ab' * 100000 %}{{ x.replace('a', x)|length }}",
                               "{{ ('{0}' * 10000).format('x' * 1000000)|length }}"}) {
      CAPTURE(source);
      CHECK_THROWS_WITH_AS(rendered(source, question()), doctest::Contains("a text of more than 268435456 bytes"),
                           Error);
    }
  }
}

TEST_CASE("chat template: arguments reach the template, those of a row before those of the run; the day is held") {
  const std::string source = "{{ enable_thinking }}{{ strftime_now('%Y-%m-%d') }}";
  CHECK(rendered(source, question(), Json::parse(R"({"enable_thinking": false})")) == "False2024-07-26");
  const ChatTemplate chat =
      make(source).with_arguments(Json::parse(R"({"enable_thinking": true, "strftime_now": "2026-01-31"})"));
  CHECK(chat.render({.messages = question()}).text == "True2026-01-31");
  CHECK(chat.render({.messages = question(), .arguments = Json::parse(R"({"enable_thinking": 0})")}).text ==
        "02026-01-31");
  CHECK_THROWS_WITH_AS(make(source).with_arguments(Json::parse("[1]")), doctest::Contains("needed an object"), Error);
  CHECK_THROWS_WITH_AS(make(source).with_arguments(Json::parse(R"({"strftime_now": "today"})")),
                       doctest::Contains("needed a day"), Error);
  CHECK_THROWS_WITH_AS(make(source).with_arguments(Json::parse(R"({"messages": []})")),
                       doctest::Contains("given by the conversation"), Error);
}

TEST_CASE("chat template: of several the one for tools is taken where there are tools") {
  const ChatTemplate chat =
      ChatTemplate::from_sources({{"default", "plain", "d"}, {"tool_use", "with tools", "t"}}, {});
  CHECK(chat.render({.messages = question()}).text == "plain");
  CHECK(chat.render({.messages = question(), .tools = Json::array()}).text == "with tools");
  CHECK_THROWS_WITH_AS(ChatTemplate::from_sources({{"rag", "x", "r"}}, {}), doctest::Contains("none is called default"),
                       Error);
}

TEST_CASE("chat template: what is no text is refused by name") {
  const Json image = Json::parse(
      R"([{"role": "user", "content": [{"type": "image", "image": "x.png"}, {"type": "text", "text": "q"}]}])");
  CHECK_THROWS_WITH_AS(rendered("x", image), doctest::Contains("messages[0].content has a part of type \"image\""),
                       Error);
  CHECK_THROWS_WITH_AS(rendered("x", Json::array()), doctest::Contains("messages is empty"), Error);
  CHECK_THROWS_WITH_AS(rendered("x", question(), Json::parse(R"({"n": 18446744073709551615})")),
                       doctest::Contains("does not fit 64 bits"), Error);
}

TEST_CASE("chat template: what raise_exception says is passed on with its line") {
  CHECK_THROWS_WITH_AS(rendered("\n{{ raise_exception('roles must alternate') }}", question()),
                       "chat.jinja, line 2: roles must alternate", Error);
}

}  // namespace sluice::test
