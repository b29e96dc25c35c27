// Any bytes as a chat template, run on a conversation with all that conversations have: bounded time and memory, and nothing but an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "text/chat_values.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"

namespace {

using namespace sluice;

const Json& messages() {
  static const Json json = Json::parse(R"([
    {"role": "system", "content": " Sys\n"}, {"role": "user", "content": [{"type": "text", "text": "Zürich 你好"}]},
    {"role": "assistant", "content": "<think>r</think>a", "reasoning_content": "why", "tool_calls": [
      {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": [1.5, null, "z"]}}}]},
    {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "abcdefghi"}, {"role": "assistant", "content": "done"}])");
  return json;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const jinja::Program program = jinja::parse(std::string_view(reinterpret_cast<const char*>(data), size));
    bool calls = false;
    const jinja::Value list = message_values(messages(), CallShape::as_given, calls);
    jinja::Interpreter run(program,
                           {{"messages", list},
                            {"tools", list},
                            {"bos_token", jinja::Value::string("<s>")},
                            {"add_generation_prompt", jinja::Value(true)}},
                           {.work = 200'000, .text_bytes = 1 << 20, .calls = 40}, "2024-07-26 00:00:00");
    const jinja::MarkedText text = run.render();
    const auto& stretches = text.stretches();
    if (!stretches.empty() && stretches.back().end != text.size()) std::abort();
  } catch (const jinja::SyntaxFault&) {
  } catch (const jinja::Failure&) {
  } catch (const Error& error) {
    if (error.code() == ErrorCode::bug) std::abort();
  }
  return 0;
}
