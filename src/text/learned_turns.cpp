#include "text/learned_turns.h"

#include <algorithm>
#include <string_view>

#include "text/jinja/python_text.h"

namespace sluice {
namespace {

using jinja::Field;
using jinja::MarkedText;
using jinja::Origin;
using jinja::Side;

constexpr auto npos = std::string_view::npos;

struct Piece {
  size_t begin, end;
  Origin origin;
};

ByteRange range(size_t begin, size_t end) { return {static_cast<int64_t>(begin), static_cast<int64_t>(end)}; }

std::string stripped(std::string_view text, Side side) {
  return jinja::strip(MarkedText(std::string(text)), side).text();
}

class Finder {
 public:
  Finder(const MarkedText& text, const TurnFacts& facts)
      : text_(text.text()), facts_(facts), by_message_(facts.assistant.size(), npos) {
    size_t begin = 0;
    for (const auto& stretch : text.stretches()) {
      pieces_.push_back({begin, stretch.end, stretch.origin});
      begin = stretch.end;
    }
    for (size_t i = 0; i < facts.assistant.size(); ++i) {
      if (!facts.assistant[i]) continue;
      by_message_[i] = turns_.size();
      turns_.push_back({.message = i, .ranges = {}});
    }
  }

  std::vector<LearnedTurn> run() {
    if (facts_.by_generation_blocks) {
      generation_blocks();
    } else {
      find_groups();
      for (size_t i = 0; i < groups_.size(); ++i) learn(i);
      for (LearnedTurn& turn : turns_) {
        if (turn.ranges.empty()) learn_empty(turn);
      }
    }
    return std::move(turns_);
  }

 private:
  // All own bytes of one message that no other message's bytes interrupt, with the template's words between them.
  struct Group {
    size_t message, begin, end;
    Origin first;
  };

  bool is_assistant(int32_t message) const { return message >= 0 && facts_.assistant[static_cast<size_t>(message)]; }

  void generation_blocks() {
    for (size_t i = 0; i < pieces_.size();) {
      const int32_t block = pieces_[i].origin.generation;
      size_t end = i;
      int32_t message = -1;
      for (; end < pieces_.size() && pieces_[end].origin.generation == block; ++end) {
        const Origin& origin = pieces_[end].origin;
        if (is_assistant(origin.turn)) message = origin.turn;
        else if (message < 0 && is_assistant(origin.message)) message = origin.message;
      }
      if (block >= 0 && !turns_.empty()) {
        LearnedTurn& turn = turns_[message >= 0 ? by_message_[static_cast<size_t>(message)] : unclaimed()];
        add(turn, pieces_[i].begin, pieces_[end - 1].end);
        const std::string written =
            stripped(text_.substr(pieces_[i].begin, pieces_[end - 1].end - pieces_[i].begin), Side::right);
        turn.ends_turn = std::any_of(facts_.stops.begin(), facts_.stops.end(),
                                     [&](const std::string& stop) { return !stop.empty() && written.ends_with(stop); });
      }
      i = end;
    }
  }

  // The turn of a block that says no message: the first that has none yet.
  size_t unclaimed() {
    while (first_empty_ < turns_.size() && !turns_[first_empty_].ranges.empty()) ++first_empty_;
    return std::min(first_empty_, turns_.size() - 1);
  }

  static void add(LearnedTurn& turn, size_t begin, size_t end) {
    if (!turn.ranges.empty()) begin = std::max(begin, static_cast<size_t>(turn.ranges.back().end));
    if (begin < end) turn.ranges.push_back(range(begin, end));
  }

  void find_groups() {
    for (const Piece& piece : pieces_) {
      const Origin& origin = piece.origin;
      // The name of a call that a later message's turn repeats is that turn's text.
      const bool quoted = is_assistant(origin.message) && origin.turn > origin.message;
      if (origin.message < 0 || quoted) continue;
      const auto message = static_cast<size_t>(origin.message);
      if (!groups_.empty() && groups_.back().message == message) groups_.back().end = piece.end;
      else groups_.push_back({message, piece.begin, piece.end, origin});
    }
  }

  size_t piece_at(size_t byte) const {
    return static_cast<size_t>(std::upper_bound(pieces_.begin(), pieces_.end(), byte,
                                                [](size_t at, const Piece& piece) { return at < piece.end; }) -
                               pieces_.begin());
  }

  // How far the text written in the pass over `message` goes from `byte` on and before it.
  ByteRange pass_around(size_t byte, int32_t message) const {
    size_t first = piece_at(byte), last = first;
    while (first > 0 && pieces_[first - 1].origin.turn == message) --first;
    while (last + 1 < pieces_.size() && pieces_[last + 1].origin.turn == message) ++last;
    return range(pieces_[first].begin, pieces_[last].end);
  }

  // The end of the first stop token's text in [from, to).
  size_t stop_end(size_t from, size_t to) const {
    size_t best = npos, end = npos;
    for (const std::string& stop : facts_.stops) {
      if (stop.empty()) continue;
      const size_t found = text_.substr(0, to).find(stop, from);
      if (found < best || (found == best && found != npos && found + stop.size() > end))
        best = found, end = found + stop.size();
    }
    return best == npos ? npos : end;
  }

  // The end of the last stop token's text in [from, to) that the template wrote.
  size_t last_written_stop(size_t from, size_t to) const {
    size_t last = npos;
    for (size_t end = stop_end(from, to); end != npos; end = stop_end(end, to))
      if (pieces_[piece_at(end - 1)].origin.message < 0) last = end;
    return last;
  }

  // Whether there is such a group, and it was written in the loop's pass over `message`.
  bool in_pass_of(size_t i, size_t message) const {
    return i < groups_.size() && groups_[i].first.turn == static_cast<int32_t>(message);
  }

  const std::optional<std::string>& prompt() {
    if (!asked_) prompt_ = facts_.generation_prompt();
    asked_ = true;
    return prompt_;
  }

  // Where the text after the generation prompt begins in [from, to), of which `pass` says whether it starts the message's own pass.
  // `to` where nothing tells.
  size_t after_prompt(size_t from, size_t to, bool pass) {
    const std::string_view window = text_.substr(from, to - from);
    const std::optional<std::string>& opening = prompt();
    if (!opening) return to;
    if (opening->empty()) return pass ? from : to;
    if (const size_t found = window.rfind(*opening); found != npos) return from + found + opening->size();
    if (!pass) return to;
    // The prompt may open a reasoning that this turn does not have: as far as both agree, back to the end of a line or tag.
    size_t same = 0;
    while (same < window.size() && same < opening->size() && window[same] == (*opening)[same]) ++same;
    const std::string_view common = window.substr(0, same);
    const size_t line = common.rfind('\n'), tag = common.find_last_of(">]");
    const size_t cut = line != npos ? line : tag;
    return cut == npos ? to : from + cut + 1;
  }

  // Whether the text that begins at `begin` begins as the message's content does.
  bool begins_as_written(const Group& group) const {
    const std::string content = stripped(facts_.contents[group.message], Side::left);
    const size_t length = std::min<size_t>(8, content.size());
    return text_.substr(group.begin).starts_with(std::string_view(content).substr(0, length)) ||
           stripped(text_.substr(group.begin, group.end - group.begin), Side::left)
               .starts_with(std::string_view(content).substr(0, length));
  }

  size_t start_of(const Group& group, size_t from, bool pass) {
    if (group.first.field == Field::content) {
      if (begins_as_written(group)) return group.begin;
      // The template wrote what the content began with itself: "<think>" before a reasoning that it cut out of the content.
      const size_t start = after_prompt(from, group.begin, pass);
      const std::string gap = stripped(text_.substr(start, group.begin - start), Side::both);
      const bool own = !gap.empty() && stripped(facts_.contents[group.message], Side::left).starts_with(gap);
      return own ? start : group.begin;
    }
    return after_prompt(from, group.begin, pass);
  }

  void learn(size_t i) {
    const Group& group = groups_[i];
    if (!facts_.assistant[group.message]) return;
    LearnedTurn& turn = turns_[by_message_[group.message]];
    const size_t before = i > 0 ? groups_[i - 1].end : 0,
                 after = i + 1 < groups_.size() ? groups_[i + 1].begin : text_.size();
    const bool pass = group.first.turn >= 0;
    size_t from = before, written = group.end;
    bool starts_pass = false;
    if (pass) {
      const ByteRange around = pass_around(group.begin, group.first.turn);
      starts_pass = static_cast<size_t>(around.begin) >= before;
      from = std::max(before, static_cast<size_t>(around.begin));
      written = std::clamp(static_cast<size_t>(around.end), group.end, after);
    }
    const size_t start = start_of(group, from, starts_pass);
    const size_t stop = stop_end(group.end, after);
    turn.ends_turn = stop != npos;
    if (stop != npos) return add(turn, start, stop);
    if (in_pass_of(i + 1, group.message)) {
      // A tool's result comes next, within the call's own pass: what follows the stop names the call once more, for the tool.
      const size_t last = last_written_stop(group.begin, group.end);
      turn.ends_turn = last != npos;
      if (last != npos) return add(turn, start, last);
      if (in_pass_of(i - 1, group.message)) return;
    }
    // No stop token: what the template closes the message with, unless another message's text stands in the same pass.
    if (written == after && i + 1 < groups_.size()) written = group.end;
    const std::string closing = stripped(text_.substr(group.end, written - group.end), Side::right);
    add(turn, start, group.end + closing.size());
  }

  // A message without text of its own that the template writes a turn for all the same.
  void learn_empty(LearnedTurn& turn) {
    const auto message = static_cast<int32_t>(turn.message);
    const auto piece =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return p.origin.turn == message; });
    if (piece == pieces_.end() || piece->origin.message >= 0) return;
    const auto last = std::find_if(piece, pieces_.end(),
                                   [&](const Piece& p) { return p.origin.turn != message || p.origin.message >= 0; });
    const size_t from = piece->begin, to = (last - 1)->end;
    const size_t start = after_prompt(from, to, true), stop = start < to ? stop_end(start, to) : npos;
    if (stop == npos) return;
    add(turn, start, stop);
    turn.ends_turn = true;
  }

  std::string_view text_;
  const TurnFacts& facts_;
  std::vector<size_t> by_message_;  // index into turns_
  std::vector<Piece> pieces_;
  std::vector<Group> groups_;
  std::vector<LearnedTurn> turns_;
  size_t first_empty_ = 0;  // turns before it have ranges
  std::optional<std::string> prompt_;
  bool asked_ = false;
};

}  // namespace

std::vector<LearnedTurn> learned_turns(const MarkedText& text, const TurnFacts& facts) {
  return Finder(text, facts).run();
}

}  // namespace sluice
