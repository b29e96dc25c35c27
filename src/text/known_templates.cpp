#include "text/known_templates.h"

#include <optional>

#include "text/turn_renderer.h"

namespace sluice {
namespace {

// Matches an outline with one hole, written @@; gives what stands in the hole ("" when there is none).
std::optional<std::string> match(std::string_view outline, std::string_view shape) {
  const size_t hole = shape.find("@@");
  if (hole == std::string_view::npos) return outline == shape ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = shape.substr(0, hole), after = shape.substr(hole + 2);
  if (outline.size() < before.size() + after.size() || !outline.starts_with(before) || !outline.ends_with(after)) return std::nullopt;
  const std::string_view found = outline.substr(before.size(), outline.size() - before.size() - after.size());
  if (found.find("'") != std::string_view::npos && found.find("\\'") == std::string_view::npos) return std::nullopt;
  return jinja_unquote("'" + std::string(found) + "'");
}

constexpr std::string_view chatml_turns =
    R"({'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}{endfor})"
    R"({if add_generation_prompt}{'<|im_start|>assistant\n'}{endif})";

// A system turn is written for a conversation that does not start with one: SmolLM2, Qwen2.
const std::string chatml_with_default =
    R"({for message in messages}{if loop.first and messages[0].role!='system'}{'<|im_start|>system\n@@<|im_end|>\n'}{endif})" +
    std::string(chatml_turns);
const std::string chatml_plain = "{for message in messages}" + std::string(chatml_turns);

TurnFormat chatml(std::optional<std::string> default_system) {
  return {.name = "chatml", .open = "<|im_start|>", .close = "\n", .end = "<|im_end|>", .after = "\n",
          .default_system = std::move(default_system)};
}

}  // namespace

std::shared_ptr<const ChatRenderer> find_known_template(const std::vector<JinjaNode>& outline, const SpecialTexts&) {
  const std::string program = to_string(outline);
  if (const auto system = match(program, chatml_with_default)) return make_turn_renderer(chatml(*system));
  if (match(program, chatml_plain)) return make_turn_renderer(chatml(std::nullopt));
  return nullptr;
}

std::string known_template_names() { return "chatml"; }

}  // namespace sluice
