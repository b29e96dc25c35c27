#include "data/prompt_cut.h"

#include <algorithm>

namespace sluice {

namespace {

// A user's text, and where it may be cut: between tokens that do not share a character.
struct Part {
  size_t message = 0;
  std::string text;
  std::vector<size_t> cuts;      // ascending, with 0 and the end
  std::vector<int64_t> lengths;  // tokens between neighbouring cuts
};

bool begins_a_character(const std::string& text, size_t at) {
  return at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80;
}

std::vector<Part> parts_of(const DataRow& row, const PromptCut& cut) {
  std::vector<Part> parts;
  for (size_t i = 0; i < std::min(cut.end, row.messages.size()); ++i) {
    const Json& message = row.messages[i];
    if (message["role"] != "user" || !message["content"].is_string()) continue;  // a user's has a content
    Part part{.message = i, .text = message["content"].get<std::string>(), .cuts = {0}, .lengths = {}};
    int64_t tokens = 0;
    for (const ByteRange& token : cut.tokenizer.encode(part.text).offsets) {
      const auto end = static_cast<size_t>(token.end);
      ++tokens;
      if (end <= part.cuts.back() || !begins_a_character(part.text, end)) continue;
      part.cuts.push_back(end);
      part.lengths.push_back(tokens);
      tokens = 0;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// How many pieces have `excess` tokens together; more than there are when all have less.
size_t pieces_for(const std::vector<Part>& parts, Truncate side, int64_t excess) {
  std::vector<int64_t> lengths;
  for (const Part& part : parts) lengths.insert(lengths.end(), part.lengths.begin(), part.lengths.end());
  if (side == Truncate::right) std::reverse(lengths.begin(), lengths.end());
  size_t pieces = 0;
  while (excess > 0 && pieces < lengths.size()) excess -= lengths[pieces++];
  return excess > 0 ? lengths.size() + 1 : pieces;
}

// The parts without their first or last `pieces` pieces, put into the rows.
void apply(const std::vector<Part>& parts, Truncate side, size_t pieces, const std::vector<DataRow*>& rows) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = side == Truncate::left ? parts[i] : parts[parts.size() - 1 - i];
    const size_t taken = std::min(pieces, part.cuts.size() - 1);
    pieces -= taken;
    const std::string left = side == Truncate::left ? part.text.substr(part.cuts[taken])
                                                    : part.text.substr(0, part.cuts[part.cuts.size() - 1 - taken]);
    for (DataRow* row : rows) row->messages[part.message]["content"] = left;
  }
}

}  // namespace

bool shorten_prompt(const std::vector<DataRow*>& rows, const PromptCut& cut,
                    const std::function<int64_t()>& excess_now) {
  const std::vector<Part> parts = parts_of(*rows.front(), cut);
  size_t most = 0;
  for (const Part& part : parts) most += part.cuts.size() - 1;
  most -= std::min<size_t>(most, 1);  // one piece stays
  const auto fits = [&](size_t pieces) {
    apply(parts, cut.side, pieces, rows);
    return excess_now() <= 0;
  };
  // Fewer pieces than `low` do not do, `high` are enough. Tokens that are taken shorten the row by as many, but for merges at the edge.
  const size_t first = pieces_for(parts, cut.side, cut.excess);
  size_t low = first, high = first;
  while (high <= most && !fits(high)) low = high + 1, high += high - first + 1;
  if (high > most && (low > most || !fits(high = most))) {
    apply(parts, cut.side, 0, rows);
    return false;
  }
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (fits(middle)) high = middle;
    else low = middle + 1;
  }
  apply(parts, cut.side, high, rows);
  return excess_now() <= 0;
}

}  // namespace sluice
