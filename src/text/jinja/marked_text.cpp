#include "text/jinja/marked_text.h"

#include <algorithm>
#include <string>

#include "text/jinja/value.h"

namespace sluice::jinja {
namespace {

// As Limits::text_bytes, while a text is still being made: replace, join and format end before the memory does.
constexpr size_t longest = size_t{256} << 20;

// The stretch that holds `byte`.
std::vector<Stretch>::const_iterator find(const std::vector<Stretch>& stretches, size_t byte) {
  return std::upper_bound(stretches.begin(), stretches.end(), byte,
                          [](size_t at, const Stretch& stretch) { return at < stretch.end; });
}

}  // namespace

void MarkedText::append(std::string_view text, Origin origin) {
  if (text.empty()) return;
  const size_t before = text_.size();
  if (text.size() > longest - std::min(longest, before))
    raise("LimitError", "a text of more than " + std::to_string(longest) + " bytes");
  text_.append(text);
  if (!origin.any() && stretches_.empty()) return;
  if (stretches_.empty() && before > 0) stretches_.push_back({before, {}});
  if (!stretches_.empty() && stretches_.back().origin == origin) stretches_.back().end = text_.size();
  else stretches_.push_back({text_.size(), origin});
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  const std::string_view text = other.text_;
  if (other.stretches_.empty()) return append(text.substr(begin, end - begin));
  for (auto stretch = find(other.stretches_, begin); begin < end; ++stretch) {
    const size_t stop = std::min(stretch->end, end);
    append(text.substr(begin, stop - begin), stretch->origin);
    begin = stop;
  }
}

void MarkedText::append_in(const MarkedText& other, int32_t turn, int32_t generation) {
  if (turn < 0 && generation < 0) return append(other);
  const auto put = [&](size_t begin, size_t end, Origin origin) {
    if (origin.turn < 0) origin.turn = turn;
    if (origin.generation < 0) origin.generation = generation;
    append(std::string_view(other.text_).substr(begin, end - begin), origin);
  };
  if (other.stretches_.empty()) return put(0, other.size(), {});
  size_t begin = 0;
  for (const Stretch& stretch : other.stretches_) {
    put(begin, stretch.end, stretch.origin);
    begin = stretch.end;
  }
}

MarkedText MarkedText::slice(size_t begin, size_t end) const {
  MarkedText result;
  if (begin < end) result.append(*this, begin, end);
  return result;
}

Origin MarkedText::origin_at(size_t byte) const {
  const auto stretch = find(stretches_, byte);
  return stretch == stretches_.end() ? Origin{} : stretch->origin;
}

}  // namespace sluice::jinja
