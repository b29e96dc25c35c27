#include "text/aligned_text.h"

#include <cstddef>
#include <numeric>

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
  if (begin >= end) return;
  after_.own_ += before_.text().substr(begin, end - begin);
  auto& from = after_.from_;
  auto& to = after_.to_;
  if (before_.edited_) {
    from.insert(from.end(), before_.from_.begin() + static_cast<std::ptrdiff_t>(begin),
                before_.from_.begin() + static_cast<std::ptrdiff_t>(end));
    to.insert(to.end(), before_.to_.begin() + static_cast<std::ptrdiff_t>(begin),
              before_.to_.begin() + static_cast<std::ptrdiff_t>(end));
    return;
  }
  const size_t size = from.size();
  from.resize(size + end - begin), to.resize(size + end - begin);
  std::iota(from.begin() + static_cast<std::ptrdiff_t>(size), from.end(), static_cast<uint32_t>(begin));
  std::iota(to.begin() + static_cast<std::ptrdiff_t>(size), to.end(), static_cast<uint32_t>(begin + 1));
}

void TextEditor::put(std::string_view text, size_t begin, size_t end) {
  const ByteRange source = before_.source(begin, end);
  after_.own_ += text;
  after_.from_.insert(after_.from_.end(), text.size(), static_cast<uint32_t>(source.begin - before_.base_));
  after_.to_.insert(after_.to_.end(), text.size(), static_cast<uint32_t>(source.end - before_.base_));
}

void TextEditor::stretch(size_t end) {
  if (!after_.to_.empty()) after_.to_.back() = static_cast<uint32_t>(before_.source(0, end).end - before_.base_);
}

}  // namespace sluice
