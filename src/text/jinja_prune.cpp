#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/jinja_outline.h"

namespace sluice {
namespace {

constexpr std::array<std::string_view, 3> roles = {"system", "user", "assistant"};
using Truth = std::optional<bool>;  // nothing: depends on the conversation

Truth fact(std::string_view atom, std::string_view role) {
  constexpr std::array<std::string_view, 21> never = {"tools",
                                                      "tools is defined",
                                                      "tools is not none",
                                                      "custom_tools",
                                                      "custom_tools is defined",
                                                      "builtin_tools",
                                                      "builtin_tools is defined",
                                                      "documents",
                                                      "documents is defined",
                                                      "date_string is defined",
                                                      "message.tool_calls",
                                                      "message.tool_calls is defined",
                                                      "'tool_calls' in message",
                                                      "enable_thinking is defined",
                                                      "strftime_now is defined",
                                                      "tools_in_user_message is defined",
                                                      "message.content is mapping",
                                                      "message.content is none",
                                                      "message.content is not string",
                                                      "message.tool_calls is not none",
                                                      "false"};
  constexpr std::array<std::string_view, 4> always = {"tools is none", "message.content is string",
                                                      "messages[0].content is string", "true"};
  for (std::string_view known : never) {
    if (atom == known) return false;
  }
  for (std::string_view known : always) {
    if (atom == known) return true;
  }
  for (const auto& [sign, same] : {std::pair<std::string_view, bool>{"==", true}, {"!=", false}}) {
    const std::string start = "message.role" + std::string(sign);
    if (atom.starts_with(start)) return (atom.substr(start.size()) == "'" + std::string(role) + "'") == same;
  }
  return std::nullopt;
}

// and, or, not and parentheses over facts.
class Condition {
 public:
  Condition(const std::vector<std::string>& tokens, std::string_view role) : tokens_(tokens), role_(role) {}
  Truth value() {
    const Truth result = disjunction();
    return at_ == tokens_.size() ? result : std::nullopt;
  }

 private:
  bool take(std::string_view token) {
    if (at_ >= tokens_.size() || tokens_[at_] != token) return false;
    ++at_;
    return true;
  }
  Truth disjunction() {
    Truth result = conjunction();
    while (take("or")) {
      const Truth right = conjunction();
      result = result == true || right == true ? Truth(true) : result && right ? Truth(false) : std::nullopt;
    }
    return result;
  }
  Truth conjunction() {
    Truth result = negation();
    while (take("and")) {
      const Truth right = negation();
      result = result == false || right == false ? Truth(false) : result && right ? Truth(true) : std::nullopt;
    }
    return result;
  }
  Truth negation() {
    if (!take("not")) return atom();
    if (++depth_ > 64) return std::nullopt;
    const Truth inner = negation();
    return inner ? Truth(!*inner) : std::nullopt;
  }
  Truth atom() {
    if (at_ < tokens_.size() && tokens_[at_] == "(" && ++depth_ <= 64) {
      ++at_;
      const Truth inner = disjunction();
      return take(")") ? inner : std::nullopt;
    }
    const size_t begin = at_;
    int open = 0;
    for (; at_ < tokens_.size(); ++at_) {
      const std::string& token = tokens_[at_];
      if (open == 0 && (token == "and" || token == "or" || token == ")")) break;
      open += token == "(" || token == "[" ? 1 : token == ")" || token == "]" ? -1 : 0;
    }
    return fact(join_jinja_tokens(std::span(tokens_).subspan(begin, at_ - begin)), role_);
  }

  const std::vector<std::string>& tokens_;
  std::string_view role_;
  size_t at_ = 0;
  int depth_ = 0;
};

bool starts_with(const JinjaNode& node, std::string_view word) {
  return !node.is_output && node.text.starts_with(word);
}

class Pruner {
 public:
  explicit Pruner(const std::vector<JinjaNode>& nodes) : nodes_(nodes) {}

  std::vector<JinjaNode> run() {
    std::vector<JinjaNode> out = block(0);
    if (at_ < nodes_.size()) refuse(nodes_[at_].text);
    return out;
  }

 private:
  struct Branch {
    std::string condition;  // empty: else
    std::vector<JinjaNode> body;
  };

  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorCode::bad_file, "chat template: found " + what + " out of place; the template is damaged");
  }

  static bool ends_block(const JinjaNode& node) {
    return starts_with(node, "elif ") || starts_with(node, "else") || starts_with(node, "endif") ||
           starts_with(node, "endfor");
  }

  // Up to a statement that ends the block, which is left.
  std::vector<JinjaNode> block(int depth) {
    if (depth > 64) refuse("blocks nested more than 64 deep");
    std::vector<JinjaNode> out;
    while (at_ < nodes_.size() && !ends_block(nodes_[at_])) {
      const JinjaNode& node = nodes_[at_];
      if (node.is_output) {
        append_output(out, node.text), ++at_;
      } else if (starts_with(node, "if ")) {
        append(out, choose(depth));
      } else if (starts_with(node, "for ")) {
        out.push_back(node), ++at_;
        append(out, block(depth + 1));
        if (at_ >= nodes_.size() || nodes_[at_].text != "endfor") refuse("a loop without endfor");
        out.push_back(nodes_[at_++]);
      } else {
        const bool is_moot = starts_with(node, "set tools=") || starts_with(node, "set tools_in_user_message=");
        if (!is_moot) out.push_back(node);
        ++at_;
      }
    }
    return out;
  }

  static void append(std::vector<JinjaNode>& out, const std::vector<JinjaNode>& more) {
    for (const JinjaNode& node : more) {
      if (node.is_output) append_output(out, node.text);
      else out.push_back(node);
    }
  }

  std::vector<JinjaNode> choose(int depth) {
    std::vector<Branch> branches;
    while (true) {
      if (at_ >= nodes_.size()) refuse("an if without endif");
      const std::string& text = nodes_[at_].text;
      const bool is_else = text == "else";
      const size_t condition = text.starts_with("if ") ? 3 : text.starts_with("elif ") ? 5 : 0;
      if (condition == 0 && !is_else) refuse(text);
      Branch branch{.condition = is_else ? "" : text.substr(condition)};
      ++at_;
      branch.body = block(depth + 1);
      branches.push_back(std::move(branch));
      if (at_ < nodes_.size() && nodes_[at_].text == "endif") break;
      if (is_else) refuse("a branch after else");
    }
    ++at_;
    return keep_possible(branches);
  }

  static std::vector<JinjaNode> keep_possible(const std::vector<Branch>& branches) {
    std::array<bool, roles.size()> open;  // roles that no earlier branch has taken for sure
    open.fill(true);
    std::vector<JinjaNode> out;
    for (const Branch& branch : branches) {
      bool possible = false, certain = true;
      const std::vector<std::string> tokens = jinja_tokens(branch.condition);
      for (size_t r = 0; r < roles.size(); ++r) {
        if (!open[r]) continue;
        const Truth truth = branch.condition.empty() ? Truth(true) : Condition(tokens, roles[r]).value();
        possible = possible || truth != false;
        certain = certain && truth == true;
        if (truth == true) open[r] = false;
      }
      if (!possible) continue;
      if (certain && out.empty()) return branch.body;
      out.push_back({false, certain ? "else" : (out.empty() ? "if " : "elif ") + branch.condition});
      append(out, branch.body);
      if (certain) break;
    }
    if (!out.empty()) out.push_back({false, "endif"});
    return out;
  }

  const std::vector<JinjaNode>& nodes_;
  size_t at_ = 0;
};

}  // namespace

std::vector<JinjaNode> prune_outline(const std::vector<JinjaNode>& nodes) { return Pruner(nodes).run(); }

}  // namespace sluice
