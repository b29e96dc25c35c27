#include "text/bpe.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr uint32_t no_rank = UINT32_MAX;
constexpr uint64_t free_slot = ~uint64_t{0};
constexpr size_t short_word = 32;  // up to here a scan for the best pair beats a heap

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A heap whose top is the best: lowest rank, then leftmost.
struct Worse {
  bool operator()(const ModelScratch::Candidate& a, const ModelScratch::Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, const Settings& settings)
    : TokenModel(std::move(vocabulary), settings.unknown_id), settings_(settings) {
  for (int byte = 0; byte < 256; ++byte) {
    int32_t& token = byte_tokens_[static_cast<size_t>(byte)];
    if (settings_.bytes_as_symbols) {
      token = vocabulary_.find(byte_level_encode(std::string(1, static_cast<char>(byte))));
    } else if (settings_.byte_fallback) {
      token = vocabulary_.find(byte_token_text(static_cast<uint8_t>(byte)));
      check(token >= 0, ErrorCode::bad_file,
            "the tokenizer falls back to bytes, but its vocabulary lacks " +
                byte_token_text(static_cast<uint8_t>(byte)) + ", needed all 256; the vocabulary is damaged");
    }
  }
  for (int32_t id = 0; id < vocabulary_.size(); ++id)
    longest_token_ = std::max(longest_token_, vocabulary_.text(id).size());
}

void Bpe::reserve_merges(size_t count) {
  while (merges_.size() < 2 * count + 2) grow_merges();
}

void Bpe::add_merge(std::string_view left, std::string_view right, bool last_wins) {
  const int32_t left_id = vocabulary_.find(left), right_id = vocabulary_.find(right);
  std::string both(left);
  both += right;
  const int32_t merged_id = vocabulary_.find(both);
  if (left_id < 0 || right_id < 0 || merged_id < 0) {
    throw Error(ErrorCode::bad_file, "merge " + std::to_string(next_rank_) + " joins \"" + std::string(left) +
                                         "\" and \"" + std::string(right) +
                                         "\", needed both and their union in the vocabulary; it is damaged");
  }
  if (2 * (num_merges_ + 1) > merges_.size()) grow_merges();
  Merge& merge = merges_[merge_slot(pair_of(left_id, right_id))];
  const bool is_new = merge.pair == free_slot;
  if (is_new || last_wins) merge = {pair_of(left_id, right_id), next_rank_, merged_id};
  num_merges_ += is_new ? 1 : 0;
  ++next_rank_;
}

void Bpe::merge_by_score(std::span<const float> scores) {
  check(scores.size() >= static_cast<size_t>(vocabulary_.size()), ErrorCode::bad_file,
        "the vocabulary has " + std::to_string(scores.size()) + " scores, needed " +
            std::to_string(vocabulary_.size()) + "; it is damaged");
  std::vector<float> sorted(scores.begin(), scores.end());
  for (float score : sorted)
    check(score == score, ErrorCode::bad_file, "a token's score is NaN; the vocabulary is damaged");
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  score_rank_.resize(scores.size());
  for (size_t id = 0; id < scores.size(); ++id) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), scores[id], std::greater<>());
    score_rank_[id] = scores[id] == never_merge ? no_rank : static_cast<uint32_t>(at - sorted.begin());
  }
}

size_t Bpe::merge_slot(uint64_t pair) const {
  const size_t mask = merges_.size() - 1;
  uint64_t hash = pair * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 32;
  size_t at = hash & mask;
  while (merges_[at].pair != free_slot && merges_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

void Bpe::grow_merges() {
  std::vector<Merge> old = std::move(merges_);
  merges_.assign(old.empty() ? 64 : 2 * old.size(), Merge{free_slot, no_rank, -1});
  for (const Merge& merge : old) {
    if (merge.pair != free_slot) merges_[merge_slot(merge.pair)] = merge;
  }
}

Bpe::Found Bpe::find_merge(int32_t left, int32_t right) const {
  if (merges_.empty()) return {no_rank, -1};
  const Merge& merge = merges_[merge_slot(pair_of(left, right))];
  return {merge.rank, merge.merged_id};
}

// The pair of symbols that covers word[begin, end).
Bpe::Found Bpe::find_pair(std::string_view word, int32_t left, uint32_t begin, int32_t right, uint32_t end) const {
  if (score_rank_.empty()) return find_merge(left, right);
  if (end - begin > longest_token_) return {no_rank, -1};
  const int32_t id = vocabulary_.find(word.substr(begin, end - begin));
  if (id < 0) return {no_rank, -1};
  return {score_rank_[static_cast<size_t>(id)], id};
}

void Bpe::initial_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  bool after_unknown = false;
  for (uint32_t at = 0; at < word.size();) {
    const uint32_t length = settings_.bytes_as_symbols ? 1 : static_cast<uint32_t>(utf8_length(word, at));
    SLUICE_ASSERT(length > 0);
    const std::string_view character = word.substr(at, length);
    at += length;
    const int32_t id =
        settings_.bytes_as_symbols ? byte_tokens_[static_cast<uint8_t>(character[0])] : vocabulary_.find(character);
    const bool known = id >= 0 || !score_rank_.empty();
    if (known) {
      symbols.push_back({id, at});
    } else if (settings_.byte_fallback) {
      for (uint32_t i = 0; i < length; ++i) {
        symbols.push_back({byte_tokens_[static_cast<uint8_t>(character[i])], at - length + i + 1});
      }
    } else if (settings_.unknown_id) {
      if (after_unknown && settings_.fuse_unknown) symbols.back().end = at;
      else symbols.push_back({*settings_.unknown_id, at});
    }
    after_unknown = !known;
  }
}

void Bpe::merge_short(std::string_view word, std::vector<Symbol>& symbols) const {
  size_t count = symbols.size();
  std::array<Found, short_word> found;  // of symbol i with symbol i + 1
  const auto look_up = [&](size_t i) {
    found[i] = find_pair(word, symbols[i].id, i == 0 ? 0 : symbols[i - 1].end, symbols[i + 1].id, symbols[i + 1].end);
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (found[i].rank < found[best].rank) best = i;
    }
    if (found[best].rank == no_rank) break;
    symbols[best] = {found[best].merged_id, symbols[best + 1].end};
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(found.begin() + static_cast<ptrdiff_t>(best) + 1, found.begin() + static_cast<ptrdiff_t>(count) - 1,
              found.begin() + static_cast<ptrdiff_t>(best));
    --count;
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
}

void Bpe::push_candidate(std::string_view word, ModelScratch& scratch, int32_t left) const {
  if (left < 0 || scratch.nodes[static_cast<size_t>(left)].next < 0) return;
  const ModelScratch::Node& a = scratch.nodes[static_cast<size_t>(left)];
  const ModelScratch::Node& b = scratch.nodes[static_cast<size_t>(a.next)];
  const Found found = find_pair(word, a.id, a.begin, b.id, b.end);
  if (found.rank == no_rank) return;
  scratch.heap.push_back({found.rank, static_cast<uint32_t>(left), a.id, b.id, found.merged_id, b.end});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), Worse{});
}

void Bpe::merge_long(std::string_view word, ModelScratch& scratch) const {
  auto& nodes = scratch.nodes;
  const int32_t count = static_cast<int32_t>(scratch.symbols.size());
  nodes.clear();
  scratch.heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    const Symbol& symbol = scratch.symbols[static_cast<size_t>(i)];
    nodes.push_back({symbol.id, i - 1, i + 1 < count ? i + 1 : -1, i == 0 ? 0 : nodes.back().end, symbol.end});
  }
  for (int32_t i = 0; i + 1 < count; ++i) push_candidate(word, scratch, i);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), Worse{});
    const ModelScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    ModelScratch::Node& a = nodes[best.left];
    if (a.end == 0 || a.id != best.left_id || a.next < 0) continue;  // outdated
    ModelScratch::Node& b = nodes[static_cast<size_t>(a.next)];
    if (b.id != best.right_id || b.end != best.right_end) continue;
    a.id = best.merged_id, a.end = b.end, a.next = b.next;
    b.end = 0;  // dead
    if (a.next >= 0) nodes[static_cast<size_t>(a.next)].previous = static_cast<int32_t>(best.left);
    push_candidate(word, scratch, a.previous);
    push_candidate(word, scratch, static_cast<int32_t>(best.left));
  }
  scratch.symbols.clear();
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = nodes[static_cast<size_t>(i)].next) {
    scratch.symbols.push_back({nodes[static_cast<size_t>(i)].id, nodes[static_cast<size_t>(i)].end});
  }
}

// Sets scratch.symbols.
void Bpe::merge_all(std::string_view word, ModelScratch& scratch) const {
  scratch.symbols.clear();
  initial_symbols(word, scratch.symbols);
  if (scratch.symbols.size() <= short_word) merge_short(word, scratch.symbols);
  else merge_long(word, scratch);
}

void Bpe::encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const {
  if (settings_.ignore_merges) {
    const int32_t id = vocabulary_.find(settings_.bytes_as_symbols ? byte_level_encode(word) : std::string(word));
    if (id >= 0) return out.push_back({id, static_cast<uint32_t>(word.size())});
  }
  merge_all(word, scratch);
  uint32_t begin = 0;
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.id >= 0) {
      out.push_back(symbol);
    } else if (settings_.byte_fallback) {
      for (uint32_t i = begin; i < symbol.end; ++i) out.push_back({byte_tokens_[static_cast<uint8_t>(word[i])], i + 1});
    } else if (settings_.unknown_id) {
      const bool fuse = settings_.fuse_unknown && begin > 0 && out.back().id == *settings_.unknown_id;
      if (fuse) out.back().end = symbol.end;
      else out.push_back({*settings_.unknown_id, symbol.end});
    }
    begin = symbol.end;
  }
}

void Bpe::add_merge_into(int32_t id) {
  const auto bytes = byte_level_decode(vocabulary_.text(id));
  SLUICE_ASSERT(bytes && settings_.bytes_as_symbols);
  ModelScratch scratch;
  merge_all(*bytes, scratch);
  if (scratch.symbols.size() == 2)
    add_merge(vocabulary_.text(scratch.symbols[0].id), vocabulary_.text(scratch.symbols[1].id), false);
}

bool Bpe::splits_before(std::string_view mark) const {
  if (settings_.bytes_as_symbols || settings_.ignore_merges || vocabulary_.find(mark) < 0) return false;
  const auto crosses = [&](int32_t id) {
    const std::string_view text = vocabulary_.text(id);
    size_t at = 0;
    while (text.substr(at).starts_with(mark)) at += mark.size();
    return text.find(mark, at) != std::string_view::npos;
  };
  for (const Merge& merge : merges_) {
    if (merge.pair != free_slot && crosses(merge.merged_id)) return false;
  }
  for (size_t id = 0; id < score_rank_.size(); ++id) {
    if (score_rank_[id] != no_rank && crosses(static_cast<int32_t>(id))) return false;
  }
  return true;
}

}  // namespace sluice
