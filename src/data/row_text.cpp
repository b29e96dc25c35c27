#include "data/row_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/row_keys.h"

namespace sluice {

namespace {

struct Learned {
  ByteRange bytes;
  double weight = 1;  // 0: of an answer that is left out
};

struct Rendered {
  std::string text;
  std::vector<Learned> learned;  // ascending
  int64_t silent = 0;            // answers that are to be learned and of which the template writes nothing
  bool rewritten = false;
  std::vector<std::string> left_out;  // keys whose text the template does not write
};

// The weight of each message as it is trained on.
std::vector<double> weights_of(const DataRow& row, TrainOn train_on) {
  std::vector<double> weights = row.weights;
  size_t last = row.messages.size();
  for (size_t i = 0; i < row.messages.size(); ++i) {
    if (row.messages[i]["role"] != "assistant" || (i < row.first_target && train_on != TrainOn::everything))
      weights[i] = 0;
    else last = i;
  }
  for (size_t i = 0; i < last && train_on == TrainOn::last_answer; ++i) weights[i] = 0;
  return weights;
}

Rendered render_plain(const DataRow& row, const ModelText& text, double weight) {
  const auto& prompt = row.messages[0]["content"].get_ref<const std::string&>();
  const std::optional<int32_t> eos = text.tokenizer.eos_id();
  Rendered result{.text = prompt + row.messages[1]["content"].get_ref<const std::string&>() +
                          (eos ? std::string(text.tokenizer.token_text(*eos)) : std::string())};
  result.learned = {{{static_cast<int64_t>(prompt.size()), static_cast<int64_t>(result.text.size())}, weight}};
  return result;
}

// Pieces that are not learned have no range, as a prompt has none: a token that reaches into an answer is learned.
Rendered render_pieces(const DataRow& row, const ModelText& text) {
  Rendered result;
  for (const TextPiece& piece : row.pieces) {
    const auto begin = static_cast<int64_t>(result.text.size());
    result.text += piece.text;
    if (piece.learned) result.learned.push_back({{begin, static_cast<int64_t>(result.text.size())}, row.weight});
  }
  const std::optional<int32_t> eos = text.tokenizer.eos_id();
  const std::string_view end = eos && !row.as_it_stands ? text.tokenizer.token_text(*eos) : std::string_view();
  if (result.text.ends_with(end)) return result;
  result.text += end;
  result.learned.back().bytes.end = static_cast<int64_t>(result.text.size());
  return result;
}

// Texts of a content, which is a text or a list of parts.
std::vector<std::string> texts_of(const Json& message) {
  const Json content = message.value("content", Json());
  if (content.is_string()) return {content.get<std::string>()};
  std::vector<std::string> texts;
  for (const Json& item : content.is_array() ? content : Json::array()) {
    if (item.is_object() && item.contains("text") && item["text"].is_string())
      texts.push_back(item["text"].get<std::string>());
  }
  return texts;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The bytes of a turn that are the assistant's.
std::string learned_text(const RenderedChat& chat, const LearnedTurn& turn) {
  std::string text;
  for (const ByteRange& range : turn.ranges) {
    text += std::string_view(chat.text).substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
  }
  return text;
}

// Whether the template gives another text, or none at all, for that conversation.
bool gives_another(const ChatTemplate& chat, const ChatInput& input, const std::string& text) {
  try {
    return chat.render(input).text != text;
  } catch (const Error&) {
    return true;
  }
}

// Tools and documents that change nothing of the text are not in it.
void check_context(const ChatTemplate& chat, const ChatInput& input, const std::string& text) {
  for (const auto& [name, list] : {std::pair("tools", &ChatInput::tools), {"documents", &ChatInput::documents}}) {
    if ((input.*list).is_null()) continue;
    ChatInput without = input;
    without.*list = Json();
    if (!gives_another(chat, without, text))
      refuse_row(fmt::format("{} is {}, and the model's chat template does not write {}; drop the key or the row", name,
                             shortened(input.*list), name));
  }
}

// Calls are in the turn of their message, or the template has no place for them.
void check_calls(const Json& message, const std::string& turn, const std::string& text, const std::string& where) {
  const Json calls = message.value("tool_calls", Json());
  for (const Json& call : calls) {
    const Json& function = call.is_object() && call.contains("function") ? call["function"] : call;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) continue;
    const auto& name = function["name"].get_ref<const std::string&>();
    if (turn.find(name) == std::string::npos && text.find(name) == std::string::npos)
      refuse_row(fmt::format("{}.tool_calls: the model's chat template does not write the call of {}", where, name));
  }
}

// What the template changed or left out. Reasoning is left out by design in earlier turns, or everywhere.
void compare(const DataRow& row, const std::vector<double>& weights, const RenderedChat& chat, Rendered& result) {
  for (const LearnedTurn& turn : chat.turns) {
    const Json& message = row.messages[turn.message];
    const std::string learned = learned_text(chat, turn);
    check_calls(message, learned, chat.text, fmt::format("messages[{}]", turn.message));
    for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
      const Json value = message.value(key, Json());
      if (value.is_string() && learned.find(trimmed(value.get<std::string>())) == std::string::npos)
        result.left_out.push_back(std::string("messages[].") + key);
    }
    for (const std::string& text : texts_of(message)) {
      const bool changed = learned.find(text) == std::string::npos;
      result.rewritten = result.rewritten || (changed && weights[turn.message] > 0);
    }
  }
  for (size_t i = 0; i < row.messages.size(); ++i) {
    if (row.messages[i].value("content", Json()).is_array() && chat.text.find("'type': 'text'") != std::string::npos)
      refuse_row(
          fmt::format("messages[{}].content is a list, which the model's chat template does not read; give a text", i));
  }
}

Rendered render(const DataRow& row, const ModelText& text, TrainOn train_on) {
  const std::vector<double> weights = weights_of(row, train_on);
  const bool bare = row.tools.is_null() && row.documents.is_null() && row.arguments.is_null();
  if (row.plain && bare && !text.chat && text.template_problem.empty()) return render_plain(row, text, weights[1]);
  const ChatTemplate& chat = text.need_chat();
  check(text.end_problem.empty(), ErrorCode::bad_config, text.end_problem);
  const ChatInput input{
      .messages = row.messages, .tools = row.tools, .documents = row.documents, .arguments = row.arguments};
  RenderedChat rendered = chat.render(input);
  check_context(chat, input, rendered.text);
  Rendered result;
  compare(row, weights, rendered, result);
  for (const LearnedTurn& turn : rendered.turns) {
    result.silent += weights[turn.message] > 0 && turn.ranges.empty() ? 1 : 0;
    for (const ByteRange& range : turn.ranges) result.learned.push_back({range, weights[turn.message]});
  }
  result.text = std::move(rendered.text);
  return result;
}

struct TokenWeights {
  std::vector<double> weights;  // of every token: that of the range it overlaps, of several the last
  int64_t untouched = 0;        // ranges that are to be learned and that no token but the first overlaps
};

TokenWeights weigh(const Encoding& encoding, const std::vector<Learned>& learned, double elsewhere) {
  TokenWeights result{.weights = std::vector<double>(encoding.ids.size(), elsewhere)};
  std::vector<bool> touched(learned.size(), false);
  size_t first = 0;  // ranges and tokens ascend together
  for (size_t t = 0; t < encoding.ids.size(); ++t) {
    const ByteRange token = encoding.offsets[t];
    if (token.size() == 0) continue;
    while (first < learned.size() && learned[first].bytes.end <= token.begin) ++first;
    for (size_t r = first; r < learned.size() && learned[r].bytes.begin < token.end; ++r) {
      if (learned[r].bytes.size() == 0) continue;
      result.weights[t] = learned[r].weight;
      touched[r] = touched[r] || t > 0;
    }
  }
  for (size_t r = 0; r < learned.size(); ++r) result.untouched += learned[r].weight > 0 && !touched[r] ? 1 : 0;
  return result;
}

}  // namespace

size_t first_learned(const DataRow& row, TrainOn train_on) {
  const std::vector<double> weights =
      weights_of(row, train_on == TrainOn::everything ? TrainOn::all_answers : train_on);
  return static_cast<size_t>(std::find_if(weights.begin(), weights.end(), [](double w) { return w > 0; }) -
                             weights.begin());
}

TokenisedRow tokenise(const DataRow& row, const ModelText& text, TrainOn train_on) {
  const bool everything = train_on == TrainOn::everything;
  if (everything && row.masks_prompt) {
    refuse_row(
        "a message that is not the assistant's says that it is not learned, and mask_prompt: false trains on every "
        "token; set mask_prompt: true");
  }
  if (train_on == TrainOn::last_answer && !row.pieces.empty()) {
    refuse_row(fmt::format(
        "train_on: last is for answers, and a {} row has none; leave it out, or give messages or prompt and completion",
        row.kind));
  }
  Rendered rendered = row.pieces.empty() ? render(row, text, train_on) : render_pieces(row, text);
  Encoding encoding = text.tokenizer.encode(rendered.text, {.add_special = !row.as_it_stands});
  SLUICE_ASSERT(encoding.ids.size() == encoding.offsets.size());
  auto [weights, untouched] = weigh(encoding, rendered.learned, everything ? row.weight : 0);
  TokenisedRow result{.sample = {.ids = std::move(encoding.ids)},
                      .rewritten = rendered.rewritten,
                      .left_out = std::move(rendered.left_out),
                      .answers_without_token = untouched + rendered.silent};
  Sample& sample = result.sample;
  for (size_t t = 0; t < weights.size(); ++t) sample.supervised.push_back(t > 0 && weights[t] > 0 ? 1 : 0);
  if (std::any_of(weights.begin(), weights.end(), [](double w) { return w != 0 && w != 1; }))
    sample.weights.assign(weights.begin(), weights.end());
  return result;
}

}  // namespace sluice
