#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/utf8.h"

namespace sluice {
namespace {

using Kind = PreTokenizerStep::Kind;
using Flagged = std::vector<std::pair<ByteRange, bool>>;  // range, whether it counts as a match

// Matches and what lies between them; ranges count from the start of `word`.
void find_matches(const PreTokenizerStep& step, std::string_view word, RegexScratch& scratch, Flagged& found) {
  found.clear();
  size_t done = 0, from = 0;
  while (from <= word.size()) {
    const auto match = step.pattern->find(word, from, scratch);
    if (!match) break;
    const auto begin = static_cast<size_t>(match->begin), end = static_cast<size_t>(match->end);
    if (begin > done) found.push_back({{static_cast<int64_t>(done), match->begin}, step.invert});
    found.push_back({*match, !step.invert});
    done = end;
    from = end;
    if (begin == end) from = end < word.size() ? end + utf8_length(word, end) : end + 1;
  }
  if (done < word.size())
    found.push_back({{static_cast<int64_t>(done), static_cast<int64_t>(word.size())}, step.invert});
}

// Joins `found` as the behavior says; the flag then means "drop".
void join(SplitBehavior behavior, Flagged& found) {
  Flagged joined;
  bool previous = false;
  const auto fold = [&](const std::pair<ByteRange, bool>& item, bool extend) {
    if (extend && !joined.empty()) {
      joined.back().first.begin = std::min(joined.back().first.begin, item.first.begin);
      joined.back().first.end = std::max(joined.back().first.end, item.first.end);
    } else {
      joined.push_back({item.first, false});
    }
    previous = item.second;
  };
  switch (behavior) {
    case SplitBehavior::removed: return;
    case SplitBehavior::isolated:
      for (auto& item : found) item.second = false;
      return;
    case SplitBehavior::contiguous:
      for (const auto& item : found) fold(item, item.second == previous);
      break;
    case SplitBehavior::merged_with_previous:
      for (const auto& item : found) fold(item, item.second && !previous);
      break;
    case SplitBehavior::merged_with_next:
      std::reverse(found.begin(), found.end());
      for (const auto& item : found) fold(item, item.second && !previous);
      std::reverse(joined.begin(), joined.end());
      break;
  }
  found = std::move(joined);
}

void split(const PreTokenizerStep& step, std::string_view text, PreTokenizerScratch& scratch,
           std::vector<ByteRange>& words) {
  std::swap(scratch.before, words);
  words.clear();
  for (const ByteRange& word : scratch.before) {
    find_matches(step, text.substr(static_cast<size_t>(word.begin), static_cast<size_t>(word.size())), scratch.regex,
                 scratch.matches);
    join(step.behavior, scratch.matches);
    for (const auto& [range, drop] : scratch.matches) {
      if (!drop && range.size() > 0) words.push_back({word.begin + range.begin, word.begin + range.end});
    }
  }
}

void cut_before_marks(std::string_view mark, std::string_view text, PreTokenizerScratch& scratch,
                      std::vector<ByteRange>& words) {
  std::swap(scratch.before, words);
  words.clear();
  for (const ByteRange& word : scratch.before) {
    const std::string_view part = text.substr(0, static_cast<size_t>(word.end));
    auto begin = static_cast<size_t>(word.begin);
    for (size_t at = begin; at < part.size();) {
      while (part.substr(at).starts_with(mark)) at += mark.size();
      at = std::min(part.find(mark, at), part.size());
      words.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(at)});
      begin = at;
    }
  }
}

bool wants_prefix(const PreTokenizerStep& step, const AlignedText& text, ByteRange word) {
  const auto begin = static_cast<size_t>(word.begin), end = static_cast<size_t>(word.end);
  const std::string_view now = text.text().substr(begin, end - begin);
  if (now.starts_with(step.text) || (step.kind == Kind::metaspace && now.starts_with(' '))) return false;
  if (step.prepend == PreTokenizerStep::Prepend::first) return text.source(begin, end).begin == 0;
  return step.prepend == PreTokenizerStep::Prepend::always;
}

// The steps that change the text: every word is written anew, with a prefix and, for metaspace, without spaces.
void rewrite(const PreTokenizerStep& step, AlignedText& text, std::vector<ByteRange>& words) {
  TextEditor editor(text);
  for (ByteRange& word : words) {
    const auto begin = static_cast<size_t>(word.begin), end = static_cast<size_t>(word.end);
    const auto new_begin = static_cast<int64_t>(editor.size());
    if (wants_prefix(step, text, word)) editor.put(step.text, begin, begin);
    size_t done = begin;
    for (size_t at = begin; step.kind == Kind::metaspace && at < end; ++at) {
      if (text.text()[at] != ' ') continue;
      editor.keep(done, at);
      editor.put(step.text, at, at + 1);
      done = at + 1;
    }
    editor.keep(done, end);
    word = {new_begin, static_cast<int64_t>(editor.size())};
  }
  text = editor.finish();
}

}  // namespace

void pre_tokenize(const PreTokenizer& steps, AlignedText& text, PreTokenizerScratch& scratch,
                  std::vector<ByteRange>& words) {
  words.clear();
  if (text.text().empty()) return;
  words.push_back({0, static_cast<int64_t>(text.text().size())});
  for (const PreTokenizerStep& step : steps) {
    if (step.kind == Kind::split) split(step, text.text(), scratch, words);
    else if (step.kind == Kind::before_marks) cut_before_marks(step.text, text.text(), scratch, words);
    else rewrite(step, text, words);
  }
}

}  // namespace sluice
