#include "ops/attention/attention_schedule.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "core/thread_pool.h"
#include "ops/attention/attention_ref.h"
#include "ops/attention/attention_turns.h"

using namespace sluice;
using namespace sluice::attention;

namespace {

Spans random_forest(std::mt19937& random, int64_t num_tokens) {
  std::vector<Spans::Piece> pieces;
  const int longest = std::uniform_int_distribution(1, 300)(random);
  for (int64_t left = num_tokens; left > 0;) {
    const int64_t length = std::min<int64_t>(left, std::uniform_int_distribution(1, longest)(random));
    pieces.push_back({std::uniform_int_distribution(-1, static_cast<int>(pieces.size()) - 1)(random), length});
    left -= length;
  }
  return Spans(pieces);
}

// Counts, for each (query, key), the visits in which the pair is shown.
std::vector<int> shown_pairs(const Schedule& schedule, int64_t key_block, int64_t query_begin, int64_t queries,
                             int64_t keys) {
  std::vector<int> shown(static_cast<size_t>(queries * keys));
  const auto add = [&](int64_t token, int64_t from, int64_t to, int n) {
    for (int64_t j = from; j < std::min(to, keys); ++j)
      shown[static_cast<size_t>((token - query_begin) * keys + j)] += n;
  };
  for (int64_t b = 0; b < schedule.num_query_blocks(); ++b) {
    const int64_t first = schedule.first_token(b), rows = schedule.num_rows(b);
    int64_t before = -1, index = 0;
    for (Visit v = schedule.first_visit(b); v.key_block >= 0; v = schedule.next_visit(b, v), ++index) {
      REQUIRE(v.key_block > before);
      before = v.key_block;
      CHECK(v.index == index);
      CHECK((v.begin % grain == 0 && v.end % grain == 0 && v.begin / key_block == v.key_block && v.size() > 0));
      CHECK((v.end - 1) / key_block == v.key_block);
      CHECK((schedule.first_seen_by(v.key_block) <= b && b <= schedule.last_seen_by(v.key_block)));
      const Visit again = schedule.visit(b, v.key_block);
      CHECK((again.begin == v.begin && again.end == v.end && again.index == v.index));
      for (int64_t r = 0; r < rows; ++r) add(first + r, v.begin, v.end, 1);
      int64_t hidden = 0;
      schedule.for_each_hidden(b, v, [&](int64_t row, int64_t from, int64_t to) {
        REQUIRE((row >= 0 && row < rows && from >= v.begin && from < to && to <= v.end));
        hidden += to - from;
        add(first + row, from, to, -1);
      });
      CHECK(schedule.all_visible(b, v) == (hidden == 0));
    }
  }
  return shown;
}

}  // namespace

TEST_CASE("attention schedule: visits without what is hidden are exactly the visible pairs, for random forests") {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const int64_t N = std::uniform_int_distribution(1, 700)(random);
    const Spans spans = round % 5 == 0 ? Spans::one(N) : random_forest(random, N);
    const int64_t window = round % 3 == 0 ? 0 : std::uniform_int_distribution(1, 400)(random);
    const int64_t query_begin = round % 2 == 0 ? 0 : std::uniform_int_distribution(0, static_cast<int>(N) - 1)(random);
    const int64_t queries = std::uniform_int_distribution<int64_t>(1, N - query_begin)(random),
                  keys = query_begin + queries;
    CAPTURE(round);
    CAPTURE(N);
    CAPTURE(window);
    CAPTURE(query_begin);
    CAPTURE(queries);
    const int64_t keys_per_block = round % 7 < 4 ? 128 : 256;
    Arena arena = Arena::allocate(Device::cpu(), 1 << 20);
    ArenaScope scope(arena);
    const Schedule schedule(scope, false, spans, window, {.begin = query_begin, .count = queries},
                            {.queries = round % 4 < 2 ? 64 : 128, .keys = keys_per_block});
    const std::vector<int> shown = shown_pairs(schedule, keys_per_block, query_begin, queries, keys);
    int64_t wrong = 0;
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        wrong += shown[static_cast<size_t>(i * keys + j)] != (ref::visible(spans, window, query_begin + i, j) ? 1 : 0);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "attention schedule: its memory grows with the tokens, not with their square, and the visits with the window") {
  int64_t bytes[2], visits[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t N = int64_t{16384} << i;
    Arena arena = Arena::allocate(Device::cpu(), 1 << 20);
    ArenaScope scope(arena);
    const Spans spans = Spans::one(N);
    const Schedule schedule(scope, false, spans, 512, {.begin = 0, .count = N}, {.queries = 128, .keys = 128});
    bytes[i] = arena.used();
    visits[i] = 0;
    for (int64_t b = 0; b < schedule.num_query_blocks(); ++b) {
      for (Visit v = schedule.first_visit(b); v.key_block >= 0; v = schedule.next_visit(b, v)) ++visits[i];
    }
  }
  CHECK(bytes[1] <= 2 * bytes[0]);
  CHECK(bytes[1] < 32768);
  CHECK(visits[1] <= 2 * visits[0] + 16);
}

TEST_CASE("attention turns: items add in order, and none hangs when one fails") {
  constexpr int64_t items = 64;
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    alignas(64) std::byte memory[3 * Turns::bytes_each];
    Turns turns(memory, 3);
    std::vector<int64_t> order[3];
    pool.parallel_for(items, [&](int64_t item, int) {
      for (int64_t place = 0; place < 3; ++place) {
        REQUIRE(turns.wait(place, item));
        order[place].push_back(item);
        turns.done(place);
      }
    });
    for (const auto& o : order) {
      for (int64_t i = 0; i < items; ++i) CHECK(o[static_cast<size_t>(i)] == i);
    }
    Turns failing(memory, 3);
    const auto run = [&] {
      pool.parallel_for(items, [&](int64_t item, int) {
        const FailGuard guard(failing);
        if (item == 5) throw Error(ErrorCode::device, "item 5");
        if (!failing.wait(0, item)) return;
        failing.done(0);
      });
    };
    CHECK_THROWS_WITH_AS(run(), "item 5", Error);
  }
}
