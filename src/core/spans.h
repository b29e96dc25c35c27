// A batch is a forest of token spans (docs/architecture.md): one row of N tokens, no padding, no batch dimension.
//
// A token sees the tokens before it in its own span and every token of its ancestors; a sliding-window layer cuts
// this by position distance. Positions continue from the parent's end, so siblings start at the same position.
//
//   Spans spans({{-1, 100}, {0, 20}, {0, 30}});   // a prompt with two answers: 150 tokens
//   spans.position(100) == 100;  spans.position(120) == 100;
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

struct Span {
  int64_t parent = -1;         // index of an earlier span, or -1 for a root
  int64_t begin = 0;           // first token
  int64_t length = 0;          // >= 1
  int64_t start_position = 0;  // position of the first token
  int64_t end() const { return begin + length; }
};

class Spans {
 public:
  struct Piece {
    int64_t parent = -1, length = 0;
  };

  Spans() = default;
  // Tokens of the pieces lie one after another in the order given. Throws Error(bug) for an empty piece or a parent
  // that is not earlier.
  explicit Spans(const std::vector<Piece>& pieces);
  static Spans one(int64_t length) { return Spans({{-1, length}}); }

  int64_t num_tokens() const { return spans_.empty() ? 0 : spans_.back().end(); }
  int64_t size() const { return static_cast<int64_t>(spans_.size()); }
  const Span& operator[](int64_t i) const { return spans_[static_cast<size_t>(i)]; }
  int64_t span_of(int64_t token) const;  // binary search
  int64_t position(int64_t token) const;

  // Runs of consecutive tokens that share one rule, from the query side: for the tokens of span s, the visible keys
  // are those of `ancestors(s)` (oldest first, s itself last), each up to the query's own position.
  const std::vector<int64_t>& ancestors(int64_t s) const { return ancestors_[static_cast<size_t>(s)]; }

  // Number of (query, key) pairs that are visible; window 0 means none.
  int64_t visible_pairs(int64_t window = 0) const;

  // The most (span, ancestor) pairs that any `rows` consecutive tokens touch: bounds what a block of queries sees, wherever it
  // begins. O(size()).
  int64_t most_lines(int64_t rows) const;

 private:
  std::vector<Span> spans_;
  std::vector<std::vector<int64_t>> ancestors_;
};

}  // namespace sluice
