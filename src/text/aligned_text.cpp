#include "text/aligned_text.h"

namespace sluice {

AlignedText AlignedText::slice(ByteRange range) const {
  const auto begin = static_cast<size_t>(range.begin), count = static_cast<size_t>(range.size());
  if (!edited_) return AlignedText(view_.substr(begin, count), base_ + range.begin);
  AlignedText part({}, base_);
  part.edited_ = true;
  part.own_ = own_.substr(begin, count);
  part.from_.assign(from_.begin() + range.begin, from_.begin() + range.end);
  part.to_.assign(to_.begin() + range.begin, to_.begin() + range.end);
  return part;
}

void TextEditor::keep(size_t begin, size_t end) {
  after_.own_ += before_.text().substr(begin, end - begin);
  for (size_t i = begin; i < end; ++i) {
    const ByteRange source = before_.source(i, i + 1);
    after_.from_.push_back(static_cast<uint32_t>(source.begin - before_.base_));
    after_.to_.push_back(static_cast<uint32_t>(source.end - before_.base_));
  }
}

void TextEditor::put(std::string_view text, size_t begin, size_t end) {
  const ByteRange source = before_.source(begin, end);
  after_.own_ += text;
  after_.from_.insert(after_.from_.end(), text.size(), static_cast<uint32_t>(source.begin - before_.base_));
  after_.to_.insert(after_.to_.end(), text.size(), static_cast<uint32_t>(source.end - before_.base_));
}

}  // namespace sluice
