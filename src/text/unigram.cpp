#include "text/unigram.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "text/utf8.h"

namespace sluice {
namespace {

// What one step of the search costs is at most this; real vocabularies have pieces of up to 100 bytes or so.
constexpr size_t longest_piece = 1024;

}  // namespace

Unigram::Unigram(Vocabulary vocabulary, std::span<const Piece> pieces, const Settings& settings)
    : TokenModel(std::move(vocabulary), settings.unknown_id), settings_(settings) {
  scores_.resize(static_cast<size_t>(vocabulary_.size()));
  std::vector<std::pair<std::string_view, int32_t>> keys;
  keys.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const std::string_view text = vocabulary_.text(piece.id);
    check(text.size() <= longest_piece, ErrorCode::bad_file,
          "piece " + std::to_string(piece.id) + " has " + std::to_string(text.size()) + " bytes, needed at most " +
              std::to_string(longest_piece) + "; the vocabulary is damaged");
    check(std::isfinite(piece.score), ErrorCode::bad_file,
          "the score of piece " + std::to_string(piece.id) + " is not finite; the vocabulary is damaged");
    scores_[static_cast<size_t>(piece.id)] = piece.score;
    keys.emplace_back(text, piece.id);
  }
  trie_ = ByteTrie(std::move(keys));
  for (int byte = 0; byte < 256 && settings_.byte_fallback; ++byte) {
    const std::string text = byte_token_text(static_cast<uint8_t>(byte));
    const int32_t id = byte_tokens_[static_cast<size_t>(byte)] = vocabulary_.find(text);
    check(id >= 0, ErrorCode::bad_file,
          "the tokenizer falls back to bytes, but its vocabulary lacks " + text +
              ", needed all 256; the vocabulary is damaged");
  }
}

// paths[i]: the best way to word[0, i).
void Unigram::find_paths(std::string_view word, std::vector<ModelScratch::Path>& paths) const {
  paths.assign(word.size() + 1, {0, -1, -1});
  const bool single = settings_.single_precision;
  const auto rounded = [single](double sum) { return single ? static_cast<float>(sum) : sum; };
  for (size_t begin = 0; begin < word.size();) {
    const size_t character = utf8_length(word, begin);
    SLUICE_ASSERT(character > 0);
    const double until_here = paths[begin].score;
    const auto offer = [&](size_t length, double score, int32_t id) {
      ModelScratch::Path& path = paths[begin + length];
      const double sum = rounded(until_here + score);
      if (path.begin < 0 || sum > path.score) path = {sum, id, static_cast<int32_t>(begin)};
    };
    bool has_single = false;
    trie_.for_each_prefix(word.substr(begin), [&](size_t length, int32_t id) {
      offer(length, scores_[static_cast<size_t>(id)], id);
      has_single = has_single || length == character;
    });
    if (!has_single) offer(character, settings_.unknown_score, settings_.unknown_id);
    begin += character;
  }
}

void Unigram::put_unknown(std::string_view word, uint32_t begin, uint32_t end, std::vector<Symbol>& out) const {
  const int32_t known = settings_.find_unknown_runs ? vocabulary_.find(word.substr(begin, end - begin)) : -1;
  if (known >= 0) return out.push_back({known, end});
  if (!settings_.byte_fallback) return out.push_back({settings_.unknown_id, end});
  for (uint32_t i = begin; i < end; ++i) out.push_back({byte_tokens_[static_cast<uint8_t>(word[i])], i + 1});
}

void Unigram::encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const {
  find_paths(word, scratch.paths);
  auto& pieces = scratch.symbols;  // from the last to the first; a run of unknown ones is one
  pieces.clear();
  for (size_t end = word.size(); end > 0;) {
    const ModelScratch::Path& path = scratch.paths[end];
    const bool joins = path.id == settings_.unknown_id && !pieces.empty() && pieces.back().id == path.id;
    if (!joins) pieces.push_back({path.id, static_cast<uint32_t>(end)});
    end = static_cast<size_t>(path.begin);
  }
  uint32_t begin = 0;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->id == settings_.unknown_id) put_unknown(word, begin, piece->end, out);
    else out.push_back(*piece);
    begin = piece->end;
  }
}

}  // namespace sluice
