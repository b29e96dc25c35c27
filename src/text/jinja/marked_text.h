// Text that remembers, byte by byte, which message of the conversation it came from.
//
//   MarkedText answer("It is four. ", {.message = 1, .field = Field::content});
//   MarkedText turn;
//   turn.append("<|im_start|>assistant\n");      // a template's own words have no origin
//   turn.append(answer.slice(0, 11));            // cutting and joining keep the origin of each byte
//
// Every string of a template program is one of these, so that what a template does to an answer (strip, split, replace, tojson)
// needs no guess afterwards: the rendered text says where each answer lies. Equality is that of the text alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

enum class Field : uint8_t { none, content, reasoning, call };

struct Origin {
  int32_t message = -1;     // whose field this text is; -1: of no message
  int32_t turn = -1;        // in the loop's pass over which message it was written
  int32_t generation = -1;  // the number of the {% generation %} block it was written in
  Field field = Field::none;
  bool operator==(const Origin&) const = default;
  bool any() const { return message >= 0 || turn >= 0 || generation >= 0; }
};

// Bytes from the end of the stretch before to `end` have one origin.
struct Stretch {
  size_t end = 0;
  Origin origin;
};

class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string text, Origin origin = {}) : text_(std::move(text)) {
    if (origin.any() && !text_.empty()) stretches_.push_back({text_.size(), origin});
  }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  // Empty when no byte has an origin, else they cover the text.
  const std::vector<Stretch>& stretches() const { return stretches_; }

  void append(std::string_view text, Origin origin = {});
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  void append(const MarkedText& other, size_t begin, size_t end);
  // As append, in the loop's pass over message `turn` and in generation block `generation`, where the text does not say its own.
  void append_in(const MarkedText& other, int32_t turn, int32_t generation);
  void reserve(size_t bytes) { text_.reserve(bytes); }

  MarkedText slice(size_t begin, size_t end) const;
  Origin origin_at(size_t byte) const;

 private:
  std::string text_;
  std::vector<Stretch> stretches_;
};

}  // namespace sluice::jinja
