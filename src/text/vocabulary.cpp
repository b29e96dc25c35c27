#include "text/vocabulary.h"

#include <functional>

#include "core/error.h"

namespace sluice {

void Vocabulary::reserve(size_t num_tokens, size_t num_bytes) {
  entries_.reserve(num_tokens);
  bytes_.reserve(num_bytes);
  while (slots_.size() < 2 * num_tokens + 2) grow();
}

bool Vocabulary::add(int32_t id, std::string_view text, bool can_find) {
  if (id < 0 || id > max_id) {
    throw Error(ErrorCode::bad_file, "token \"" + std::string(text) + "\" has id " + std::to_string(id) +
                                         ", needed 0 to " + std::to_string(max_id) + "; the vocabulary is damaged");
  }
  if (has(id)) {
    throw Error(ErrorCode::bad_file, "tokens \"" + std::string(this->text(id)) + "\" and \"" + std::string(text) +
                                         "\" both have id " + std::to_string(id) +
                                         ", needed one id each; the vocabulary is damaged");
  }
  check(bytes_.size() + text.size() < UINT32_MAX, ErrorCode::bad_file,
        "the vocabulary has over 4 GiB of text; it is damaged");
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size()), true};
  ++taken_;
  bytes_ += text;
  if (!can_find || text.empty()) return true;
  if (2 * (used_ + 1) > slots_.size()) grow();
  int32_t& slot = slots_[slot_of(text)];
  if (slot >= 0) return false;
  slot = id;
  ++used_;
  return true;
}

int32_t Vocabulary::find(std::string_view text) const { return slots_.empty() ? -1 : slots_[slot_of(text)]; }

std::string_view Vocabulary::text(int32_t id) const {
  if (!has(id)) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(entry.begin, entry.length);
}

size_t Vocabulary::slot_of(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t at = std::hash<std::string_view>{}(text)&mask;
  while (slots_[at] >= 0 && this->text(slots_[at]) != text) at = (at + 1) & mask;
  return at;
}

void Vocabulary::grow() {
  std::vector<int32_t> old = std::move(slots_);
  slots_.assign(old.empty() ? 64 : 2 * old.size(), -1);
  for (int32_t id : old) {
    if (id >= 0) slots_[slot_of(text(id))] = id;
  }
}

}  // namespace sluice
