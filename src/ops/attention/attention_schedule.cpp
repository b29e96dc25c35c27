#include "ops/attention/attention_schedule.h"

#include "core/error.h"

namespace sluice::attention {

Schedule::Schedule(ArenaScope& scope, bool counting, const Spans& spans, int64_t window, const Queries& queries,
                   const Blocks& blocks)
    : spans_(spans), window_(window), queries_(queries), blocks_(blocks) {
  // Room by a bound that is the same for every call on these spans, so that a plan need not price each.
  first_run_ = scope.array<int64_t>(num_query_blocks() + 1);
  runs_ = scope.array<Run>(num_query_blocks() * spans.most_lines(blocks.queries));
  seen_by_ = scope.array<int64_t>(2 * num_key_blocks());
  if (!counting) fill();
}

// The tokens of `ancestor` that tokens of `span` see: those that the token at `first` or any later one up to `last` sees.
Schedule::Interval Schedule::seen_of(int64_t span, int64_t ancestor, int64_t first, int64_t last) const {
  const Span &s = spans_[span], &a = spans_[ancestor];
  const int64_t to_position = a.start_position - a.begin;
  int64_t begin = a.begin;
  if (window_ > 0) begin = std::max(begin, s.start_position + (first - s.begin) - window_ + 1 - to_position);
  return {begin, ancestor == span ? last + 1 : a.end()};
}

// f(the keys that some row of the block sees), span by span, with an ancestor's intervals from the youngest on.
template <class F>
void Schedule::for_each_interval(int64_t block, F f) const {
  const int64_t first = first_token(block), end = first + num_rows(block);
  for (int64_t token = first, span = spans_.span_of(first); token < end; token = spans_[span++].end()) {
    const auto& ancestors = spans_.ancestors(span);
    const int64_t last = std::min(end, spans_[span].end()) - 1;
    for (auto a = ancestors.rbegin(); a != ancestors.rend(); ++a) {
      const Interval seen = seen_of(span, *a, token, last);
      if (seen.begin >= seen.end) break;  // older ones are out of the window, too
      f(seen);
    }
  }
}

void Schedule::fill() {
  for (int64_t kb = 0; kb < num_key_blocks(); ++kb) seen_by_[2 * kb] = num_query_blocks(), seen_by_[2 * kb + 1] = -1;
  int64_t count = 0;
  for (int64_t block = 0; block < num_query_blocks(); ++block) {
    first_run_[block] = count;
    Run* const runs = runs_ + count;
    int64_t n = 0;
    for_each_interval(block, [&](Interval i) {
      runs[n++] = {i.begin / blocks_.keys, (i.end - 1) / blocks_.keys, i.begin, i.end, 0};
    });
    std::sort(runs, runs + n, [](const Run& a, const Run& b) { return a.begin < b.begin; });
    int64_t merged = 0;
    for (int64_t i = 1; i < n; ++i) {
      Run& last = runs[merged];
      if (runs[i].first_block > last.last_block) {
        runs[++merged] = runs[i];
        continue;
      }
      last.end = std::max(last.end, runs[i].end);
      last.last_block = std::max(last.last_block, runs[i].last_block);
    }
    count += merged + 1;
    for (int64_t r = 0, visits = 0; r <= merged; visits += runs[r].last_block - runs[r].first_block + 1, ++r) {
      runs[r].visits_before = visits;
      for (int64_t kb = runs[r].first_block; kb <= runs[r].last_block; ++kb) {
        seen_by_[2 * kb] = std::min(seen_by_[2 * kb], block);
        seen_by_[2 * kb + 1] = block;
      }
    }
  }
  first_run_[num_query_blocks()] = count;
}

Visit Schedule::visit_in(int64_t run, int64_t kb) const {
  const Run& r = runs_[run];
  const int64_t begin = std::max(r.begin, kb * blocks_.keys), end = std::min(r.end, (kb + 1) * blocks_.keys);
  return {.key_block = kb,
          .begin = begin / grain * grain,
          .end = round_up(end, grain),
          .index = r.visits_before + kb - r.first_block,
          .run = run};
}

Visit Schedule::next_visit(int64_t block, const Visit& visit) const {
  if (visit.key_block < runs_[visit.run].last_block) return visit_in(visit.run, visit.key_block + 1);
  if (visit.run + 1 < first_run_[block + 1]) return visit_in(visit.run + 1, runs_[visit.run + 1].first_block);
  return {};
}

Visit Schedule::visit(int64_t block, int64_t kb) const {
  const Run* const begin = runs_ + first_run_[block];
  const Run* const end = runs_ + first_run_[block + 1];
  const Run* const run = std::lower_bound(begin, end, kb, [](const Run& r, int64_t b) { return r.last_block < b; });
  if (run == end || run->first_block > kb) return {};
  return visit_in(run - runs_, kb);
}

// Index of the first of `ancestors` that ends after `token`.
int64_t Schedule::first_ancestor_past(const std::vector<int64_t>& ancestors, int64_t token) const {
  return std::partition_point(ancestors.begin(), ancestors.end(), [&](int64_t a) { return spans_[a].end() <= token; }) -
         ancestors.begin();
}

bool Schedule::all_visible(int64_t block, const Visit& visit) const {
  const int64_t first = first_token(block), end = first + num_rows(block);
  for (int64_t token = first, span = spans_.span_of(first); token < end; token = spans_[span++].end()) {
    const auto& ancestors = spans_.ancestors(span);
    const int64_t last = std::min(end, spans_[span].end()) - 1;
    int64_t seen_by_all = 0;
    for (size_t a = static_cast<size_t>(first_ancestor_past(ancestors, visit.begin)); a < ancestors.size(); ++a) {
      if (spans_[ancestors[a]].begin >= visit.end) break;
      const Interval seen =
          seen_of(span, ancestors[a], last, token);  // the window of the last row, the end of the first
      seen_by_all += std::max<int64_t>(0, std::min(seen.end, visit.end) - std::max(seen.begin, visit.begin));
    }
    if (seen_by_all < visit.size()) return false;
  }
  return true;
}

}  // namespace sluice::attention
