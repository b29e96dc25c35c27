// Text on its way from what the user wrote to what the model sees, with where each byte came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_range.h"

namespace sluice {

class AlignedText {
 public:
  // Unchanged text: bytes [base, base + text.size()) of the source. Keeps the view.
  AlignedText(std::string_view text, int64_t base) : view_(text), base_(base) {}

  std::string_view text() const { return edited_ ? std::string_view(own_) : view_; }

  // The source bytes behind bytes [begin, end) of text().
  ByteRange source(size_t begin, size_t end) const {
    if (!edited_) return {base_ + static_cast<int64_t>(begin), base_ + static_cast<int64_t>(end)};
    if (begin < end) return {base_ + from_[begin], base_ + to_[end - 1]};
    const int64_t at = base_ + (begin < from_.size() ? from_[begin] : to_.empty() ? 0 : to_.back());
    return {at, at};
  }

  AlignedText slice(ByteRange range) const;

 private:
  friend class TextEditor;
  std::string_view view_;
  int64_t base_;
  bool edited_ = false;
  std::string own_;
  std::vector<uint32_t> from_, to_;  // by byte of own_, counted from base_
};

// Writes a changed copy, piece by piece.
class TextEditor {
 public:
  explicit TextEditor(const AlignedText& before) : before_(before), after_({}, before.base_) { after_.edited_ = true; }
  size_t size() const { return after_.own_.size(); }
  void keep(size_t begin, size_t end);                        // bytes of the text before
  void put(std::string_view text, size_t begin, size_t end);  // `text` in the place of bytes [begin, end)
  void stretch(size_t end);  // what was written last stands for the bytes up to `end` too
  AlignedText finish() { return std::move(after_); }

 private:
  const AlignedText& before_;
  AlignedText after_;
};

}  // namespace sluice
