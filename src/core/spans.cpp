#include "core/spans.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

Spans::Spans(const std::vector<Piece>& pieces) {
  int64_t begin = 0;
  for (const Piece& piece : pieces) {
    const int64_t index = size();
    SLUICE_ASSERT(piece.length >= 1 && piece.parent >= -1 && piece.parent < index);
    Span span{.parent = piece.parent, .begin = begin, .length = piece.length, .start_position = 0};
    std::vector<int64_t> line;
    if (piece.parent >= 0) {
      const Span& parent = (*this)[piece.parent];
      span.start_position = parent.start_position + parent.length;
      line = ancestors_[static_cast<size_t>(piece.parent)];
    }
    line.push_back(index);
    spans_.push_back(span);
    ancestors_.push_back(std::move(line));
    begin += piece.length;
  }
}

int64_t Spans::span_of(int64_t token) const {
  SLUICE_ASSERT(token >= 0 && token < num_tokens());
  const auto after =
      std::upper_bound(spans_.begin(), spans_.end(), token, [](int64_t t, const Span& span) { return t < span.begin; });
  return after - spans_.begin() - 1;
}

int64_t Spans::position(int64_t token) const {
  const Span& span = (*this)[span_of(token)];
  return span.start_position + (token - span.begin);
}

int64_t Spans::visible_pairs(int64_t window) const {
  int64_t pairs = 0;
  for (const Span& span : spans_) {
    for (int64_t i = 0; i < span.length; ++i) {
      const int64_t seen = span.start_position + i + 1;
      pairs += window > 0 ? std::min(window, seen) : seen;
    }
  }
  return pairs;
}

int64_t Spans::most_lines(int64_t rows) const {
  int64_t most = 0, lines = 0;
  for (int64_t first = 0, end = 0; first < size(); ++first) {
    // The latest block that touches `first` begins at its last token.
    for (; end < size() && (*this)[end].begin < (*this)[first].end() - 1 + rows; ++end)
      lines += static_cast<int64_t>(ancestors(end).size());
    most = std::max(most, lines);
    lines -= static_cast<int64_t>(ancestors(first).size());
  }
  return most;
}

}  // namespace sluice
