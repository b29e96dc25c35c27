#include "text/known_templates.h"

#include <array>
#include <functional>
#include <optional>

#include "text/turn_renderer.h"

namespace sluice {
namespace {

// Matches an outline against a shape. Each hole of the shape, written @@, stands for a part of one literal; gives the parts.
std::optional<std::vector<std::string>> match(std::string_view outline, std::string_view shape) {
  std::vector<std::string> holes;
  while (true) {
    const size_t hole = shape.find("@@");
    if (hole == std::string_view::npos) return outline == shape ? std::optional(holes) : std::nullopt;
    if (!outline.starts_with(shape.substr(0, hole))) return std::nullopt;
    outline.remove_prefix(hole);
    shape.remove_prefix(hole + 2);
    const std::string_view after = shape.substr(0, shape.find("@@"));
    const size_t end = outline.find(after);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view found = outline.substr(0, end);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == '\\') ++i;
      else if (found[i] == '\'') return std::nullopt;
    }
    holes.push_back(jinja_unquote("'" + std::string(found) + "'"));
    outline.remove_prefix(end);
  }
}

using Holes = std::vector<std::string>;
struct KnownTemplate {
  std::string_view name;
  std::string shape;  // of the pruned outline
  std::function<TurnFormat(const Holes&, const SpecialTexts&)> format;
};

TurnFormat chatml() { return uniform_turns("chatml", "<|im_start|>", "\n", "<|im_end|>", "\n"); }
TurnFormat llama3() {
  return uniform_turns("llama3", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "");
}

TurnFormat with_default_system(TurnFormat format, const std::string& text) {
  format.default_system = text;
  return format;
}

TurnFormat starting(TurnFormat format, const std::string& start) {
  format.start = start;
  return format;
}

TurnFormat trimmed(TurnFormat format) {
  format.trim = true;
  return format;
}

// <open>user … <open>model: Gemma. The system text opens the first user turn, or there is none.
TurnFormat gemma(const SpecialTexts& texts, TurnFormat::System system) {
  TurnFormat format = uniform_turns("gemma", "<start_of_turn>", "\n", "<end_of_turn>", "\n", "model");
  format.start = texts.bos, format.trim = true, format.alternate = true;
  format.system = system, format.system_separator = "\n\n";
  return format;
}

// [INST] … [/INST]; `space` stands before what the assistant says, `after` after its end-of-sequence token.
TurnFormat mistral(const SpecialTexts& texts, const std::string& space, const std::string& after) {
  return {.name = "mistral",
          .start = texts.bos,
          .user_turn = {"[INST] ", " [/INST]"},
          .assistant_turn = {space, after},
          .assistant_end = texts.eos,
          .alternate = true,
          .system = TurnFormat::System::not_allowed};
}

std::vector<KnownTemplate> make_known() {
  const std::string turn = R"({'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'})";
  const std::string chatml_prompt = R"({if add_generation_prompt}{'<|im_start|>assistant\n'}{endif})";
  const std::string llama3_prompt =
      R"({if add_generation_prompt}{'<|start_header_id|>assistant<|end_header_id|>\n\n'}{endif})";
  const std::string llama3_turn =
      R"('<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>')";
  const std::string alternate = "{if (message.role=='user')!=(loop.index0%2==0)}{raise_exception('@@')}{endif}";
  const std::string gemma_role =
      "{if (message.role=='assistant')}{set role='model'}{else}{set role=message.role}{endif}";
  const std::string gemma_prompt = R"({if add_generation_prompt}{'<start_of_turn>model\n'}{endif})";
  std::vector<KnownTemplate> known;
  const auto add = [&](std::string_view name, std::string shape,
                       std::function<TurnFormat(const Holes&, const SpecialTexts&)> format) {
    known.push_back({name, std::move(shape), std::move(format)});
  };

  add("chatml", "{for message in messages}" + turn + "{endfor}" + chatml_prompt, [](auto&, auto&) { return chatml(); });
  // A system turn for a conversation without one: SmolLM2 and Qwen2, then Qwen2.5.
  add("chatml",
      R"({for message in messages}{if loop.first and messages[0].role!='system'}{'<|im_start|>system\n@@<|im_end|>\n'}{endif})" +
          turn + "{endfor}" + chatml_prompt,
      [](const Holes& holes, auto&) { return with_default_system(chatml(), holes[0]); });
  add("chatml",
      R"({if messages[0].role=='system'}{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}{else})"
      R"({'<|im_start|>system\n@@<|im_end|>\n'}{endif}{for message in messages})"
      R"({if (message.role=='user') or (message.role=='system' and not loop.first) or (message.role=='assistant' and not message.tool_calls)})" +
          turn + "{endif}{endfor}" + chatml_prompt,
      [](const Holes& holes, auto&) { return with_default_system(chatml(), holes[0]); });
  add("llama3",
      "{set loop_messages=messages}{for message in loop_messages}{set content=" + llama3_turn +
          "}{if loop.index0==0}{set content=bos_token+content}{endif}{content}{endfor}" + llama3_prompt,
      [](auto&, const SpecialTexts& texts) { return starting(trimmed(llama3()), texts.bos); });
  // Llama 3.1 to 3.3: a system turn with two dates, always; today's date is the one the template falls back to.
  add("llama3",
      "{bos_token}{set date_string='@@'}{if messages[0].role=='system'}{set system_message=messages[0].content|trim}"
      R"({set messages=messages[1:]}{else}{set system_message=''}{endif}{'<|start_header_id|>system<|end_header_id|>\n\n@@'+date_string)"
      R"(+'\n\n'+system_message+'<|eot_id|>'}{for message in messages}{)" +
          llama3_turn + "}{endfor}" + llama3_prompt,
      [](const Holes& holes, const SpecialTexts& texts) {
        TurnFormat format = starting(trimmed(llama3()), texts.bos);
        format.system = TurnFormat::System::always;
        format.system_prefix = holes[1] + holes[0] + "\n\n";
        return format;
      });
  add("gemma",
      "{bos_token}{if messages[0].role=='system'}{raise_exception('@@')}{endif}{for message in messages}" + alternate +
          gemma_role + R"({'<start_of_turn>'+role+'\n'+message.content|trim+'<end_of_turn>\n'}{endfor})" + gemma_prompt,
      [](auto&, const SpecialTexts& texts) { return gemma(texts, TurnFormat::System::not_allowed); });
  add("gemma",
      R"({bos_token}{if messages[0].role=='system'}{set first_user_prefix=messages[0].content+'\n\n'}{set loop_messages=messages[1:]})"
      "{else}{set first_user_prefix=''}{set loop_messages=messages}{endif}{for message in loop_messages}" +
          alternate + gemma_role +
          R"({'<start_of_turn>'+role+'\n'+(first_user_prefix if loop.first else '')+message.content|trim+'<end_of_turn>\n'}{endfor})" +
          gemma_prompt,
      [](auto&, const SpecialTexts& texts) { return gemma(texts, TurnFormat::System::in_user); });
  // Mistral 7B Instruct 0.1 and kin, by what stands around an answer.
  for (const auto& [expression, space, after] :
       std::vector<std::array<std::string, 3>>{{"message.content+eos_token", "", ""},
                                               {"message.content+eos_token+' '", "", " "},
                                               {"' '+message.content+eos_token", " ", ""}}) {
    add("mistral",
        "{bos_token}{for message in messages}" + alternate +
            "{if message.role=='user'}{'[INST] '+message.content+' [/INST]'}" + "{elif message.role=='assistant'}{" +
            expression + "}{else}{raise_exception('@@')}{endif}{endfor}",
        [space = space, after = after](auto&, const SpecialTexts& texts) { return mistral(texts, space, after); });
  }
  return known;
}

const std::vector<KnownTemplate>& known_templates() {
  static const std::vector<KnownTemplate> list = make_known();
  return list;
}

}  // namespace

std::shared_ptr<const ChatRenderer> find_known_template(const std::vector<JinjaNode>& outline,
                                                        const SpecialTexts& texts) {
  const std::string program = to_string(outline);
  for (const KnownTemplate& known : known_templates()) {
    if (const auto holes = match(program, known.shape)) return make_turn_renderer(known.format(*holes, texts));
  }
  return nullptr;
}

std::string known_template_names() {
  std::string names;
  for (const KnownTemplate& known : known_templates()) {
    if (names.find(known.name) == std::string::npos) names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return names;
}

}  // namespace sluice
