#include "data/row_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/row_format.h"

namespace sluice {

namespace {

constexpr std::array<std::string_view, 3> weights = {"weight", "loss_weight", "sample_weight"};
constexpr std::array<std::string_view, 5> switches = {"train", "training", "trainable", "loss", "loss_mask"};
constexpr double least_weight = 1e-6, largest_weight = 1e6;  // of two, multiplied, float32 keeps apart from 0

// Parts of names that other tools give to keys of the same purpose.
constexpr std::array<std::string_view, 17> words_of_learning = {
    "mask",    "masked", "masking", "train",     "trained",    "training",  "trainable", "loss", "weight",
    "weights", "learn",  "learned", "learnable", "supervised", "supervise", "ignore",    "label"};

// What the model would have to be given; in rows and in messages alike.
constexpr std::array<std::string_view, 32> content = {
    "system",        "system_prompt", "system_message", "history",   "input",
    "inputs",        "context",       "documents",      "tools",     "functions",
    "function_call", "tool_calls",    "tool_results",   "reasoning", "reasoning_content",
    "thinking",      "thought",       "think",          "images",    "image",
    "image_url",     "videos",        "video",          "audios",    "audio",
    "input_audio",   "files",         "attachments",    "refusal",   "prefix",
    "suffix",        "chat_template"};

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

bool says_what_is_learned(std::string_view key) {
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find_first_of("_-", begin), key.size());
    if (is_one_of(words_of_learning, key.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

std::string path_of(const std::string& where, const std::string& key) {
  return where.empty() ? key : where + "." + key;
}

std::optional<double> weight_in(const std::string& key, const Json& value, const std::string& where) {
  const bool number = is_one_of(weights, key), on_off = is_one_of(switches, key);
  if ((!number && !on_off) || value.is_null()) return std::nullopt;
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  const double given = value.is_number() ? value.get<double>() : -1;
  if (on_off && given != 0 && given != 1) {
    refuse_row(fmt::format("{} is {}, needed true, false, 1 or 0; a weight between them goes into \"weight\"",
                           path_of(where, key), shortened(value)));
  }
  if (given != 0 && !(given >= least_weight && given <= largest_weight)) {
    refuse_row(fmt::format("{} is {}, needed true, false, 0 or a number from 0.000001 to 1,000,000",
                           path_of(where, key), shortened(value)));
  }
  return given;
}

}  // namespace

bool is_empty_value(const Json& value) {
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

std::string shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= 60) return text;
  size_t end = 57;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // no half characters
  return text.substr(0, end) + "...";
}

std::optional<double> weight_of(const Json& object, const std::string& where) {
  std::optional<double> weight;
  std::string from;
  for (const auto& [key, value] : object.items()) {
    const std::optional<double> given = weight_in(key, value, where);
    if (!given) continue;
    if (weight && *weight != *given) {
      refuse_row(fmt::format("{} is {} and {} is {}: they contradict each other; keep one", path_of(where, from),
                             shortened(object[from]), key, shortened(value)));
    }
    weight = given;
    from = key;
  }
  return weight;
}

std::vector<std::string> unread_keys(const Json& object, const std::string& where,
                                     const std::vector<std::string_view>& read,
                                     const std::vector<std::string>& spoken) {
  std::vector<std::string> unread;
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    if (std::find(read.begin(), read.end(), key) != read.end() || is_empty_value(value)) continue;
    if (is_one_of(weights, key) || is_one_of(switches, key)) continue;
    // A row's own label or training id is a note of its collector; in a message such a name can mean only one thing.
    if (says_what_is_learned(key) && (!where.empty() || key.find("mask") != std::string::npos)) {
      refuse_row(fmt::format("{} is not known; what is learned is said by train (true or false) or weight (a number)",
                             path_of(where, key)));
    }
    const auto repeats = [&](const std::string& text) {
      return value.is_string() && text.find(value.get_ref<const std::string&>()) != std::string::npos;
    };
    if (is_one_of(content, key) && std::none_of(spoken.begin(), spoken.end(), repeats)) {
      refuse_row(
          fmt::format("{} is {}, which rows of this format have no place for, so the model would not see it; put "
                      "it into a message, or drop the key or the row",
                      path_of(where, key), shortened(value)));
    }
    unread.push_back(key);
  }
  return unread;
}

}  // namespace sluice
