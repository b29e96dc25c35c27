// Which blocks of scores a call computes, and what is hidden inside them. Built once per call from the spans and the window.
//
// Queries are cut into blocks from the first one of the call, keys into blocks from token 0. What a query block
// sees is a short list of runs of key blocks in ascending order: one for plain causal attention, one more for each gap that a
// sibling or the window leaves. So the memory is O(blocks + spans), whatever the number of visible blocks.
//
//   for (Visit v = schedule.first_visit(b); v.key_block >= 0; v = schedule.next_visit(b, v)) {
//     … keys [v.begin, v.end), both multiples of `grain` …
//     if (!schedule.all_visible(b, v)) schedule.for_each_hidden(b, v, [&](int64_t row, int64_t from, int64_t to) { … });
//   }
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/spans.h"

namespace sluice::attention {

// Extents of tiles are multiples of this, so that few shapes of products exist; what is past the last token is padding.
constexpr int64_t grain = 64;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The keys of one key block that some row of a query block sees, widened to multiples of `grain`.
struct Visit {
  int64_t key_block = -1, begin = 0, end = 0;
  int64_t index = 0;  // among the block's visits
  int64_t run = 0;
  int64_t size() const { return end - begin; }
};

// The tokens [begin, begin + count).
struct Queries {
  int64_t begin, count;
};

// Tokens of a block of queries and of keys; multiples of `grain`.
struct Blocks {
  int64_t queries, keys;
};

class Schedule {
 public:
  // Takes its memory from the arena and fills it unless the arena only counts.
  Schedule(ArenaScope& scope, bool counting, const Spans& spans, int64_t window, const Queries& queries,
           const Blocks& blocks);

  int64_t num_query_blocks() const { return (queries_.count + blocks_.queries - 1) / blocks_.queries; }
  int64_t num_key_blocks() const { return (queries_.begin + queries_.count + blocks_.keys - 1) / blocks_.keys; }
  int64_t first_row(int64_t block) const { return block * blocks_.queries; }  // of the call's queries
  int64_t num_rows(int64_t block) const { return std::min(blocks_.queries, queries_.count - first_row(block)); }
  int64_t first_token(int64_t block) const { return queries_.begin + first_row(block); }

  Visit first_visit(int64_t block) const { return visit_in(first_run_[block], runs_[first_run_[block]].first_block); }
  Visit next_visit(int64_t block, const Visit& visit) const;
  Visit visit(int64_t block, int64_t key_block) const;  // key_block -1 in the result: not seen
  // The query blocks that may see a key block: [first_seen_by, last_seen_by].
  int64_t first_seen_by(int64_t key_block) const { return seen_by_[2 * key_block]; }
  int64_t last_seen_by(int64_t key_block) const { return seen_by_[2 * key_block + 1]; }

  bool all_visible(int64_t block, const Visit& visit) const;
  // Calls hide(row, from, to) for the keys [from, to) of the visit that the block's row `row` does not see.
  template <class Hide>
  void for_each_hidden(int64_t block, const Visit& visit, Hide hide) const;

 private:
  struct Run {  // of key blocks; tokens [begin, end) are seen by some row
    int64_t first_block, last_block, begin, end, visits_before;
  };
  struct Interval {
    int64_t begin, end;
  };

  Interval seen_of(int64_t span, int64_t ancestor, int64_t first, int64_t last) const;
  template <class F>
  void for_each_interval(int64_t block, F f) const;
  int64_t first_ancestor_past(const std::vector<int64_t>& ancestors, int64_t token) const;
  Visit visit_in(int64_t run, int64_t key_block) const;
  void fill();

  const Spans& spans_;
  int64_t window_;
  Queries queries_;
  Blocks blocks_;
  int64_t* first_run_ = nullptr;  // [num_query_blocks + 1]
  Run* runs_ = nullptr;
  int64_t* seen_by_ = nullptr;  // [num_key_blocks, 2]
};

template <class Hide>
void Schedule::for_each_hidden(int64_t block, const Visit& visit, Hide hide) const {
  const int64_t first = first_token(block), end = first + num_rows(block);
  for (int64_t token = first, span = spans_.span_of(first); token < end; ++span) {
    const auto& ancestors = spans_.ancestors(span);
    const int64_t oldest = first_ancestor_past(ancestors, visit.begin);
    for (const int64_t span_end = std::min(end, spans_[span].end()); token < span_end; ++token) {
      int64_t shown = visit.begin;  // all before it is dealt with
      for (size_t a = static_cast<size_t>(oldest); a < ancestors.size() && spans_[ancestors[a]].begin < visit.end;
           ++a) {
        const Interval seen = seen_of(span, ancestors[a], token, token);
        if (seen.begin >= seen.end) continue;
        const int64_t from = std::min(std::max(seen.begin, visit.begin), visit.end);
        if (from > shown) hide(token - first, shown, from);
        shown = std::max(shown, std::min(seen.end, visit.end));
      }
      if (shown < visit.end) hide(token - first, shown, visit.end);
    }
  }
}

}  // namespace sluice::attention
