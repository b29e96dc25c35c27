#include "text/word_piece.h"

namespace sluice {
namespace {

bool has_more_characters(std::string_view word, int64_t limit) {
  int64_t count = 0;
  for (char c : word) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count > limit;
}

}  // namespace

WordPiece::WordPiece(Vocabulary vocabulary, const Settings& settings)
    : TokenModel(std::move(vocabulary), settings.unknown_id), settings_(settings) {
  std::vector<std::pair<std::string_view, int32_t>> first, further;
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view text = vocabulary_.text(id);
    if (text.empty() || vocabulary_.find(text) != id) continue;
    first.emplace_back(text, id);
    if (text.starts_with(settings_.continuing_prefix))
      further.emplace_back(text.substr(settings_.continuing_prefix.size()), id);
  }
  first_ = ByteTrie(std::move(first)), further_ = ByteTrie(std::move(further));
}

void WordPiece::encode(std::string_view word, ModelScratch&, std::vector<Symbol>& out) const {
  const size_t before = out.size();
  bool known = !has_more_characters(word, settings_.max_word_characters);
  for (size_t at = 0; known && at < word.size();) {
    const auto [length, id] = (at == 0 ? first_ : further_).longest_prefix(word.substr(at));
    known = length > 0;
    at += length;
    if (known) out.push_back({id, static_cast<uint32_t>(at)});
  }
  if (known) return;
  out.resize(before);
  out.push_back({settings_.unknown_id, static_cast<uint32_t>(word.size())});
}

void WordLevel::encode(std::string_view word, ModelScratch&, std::vector<Symbol>& out) const {
  const int32_t id = vocabulary_.find(word);
  out.push_back({id >= 0 ? id : *unknown_id_, static_cast<uint32_t>(word.size())});
}

}  // namespace sluice
