// Shortening of a row that is too long, in what the user said: the answers, the system message and all that the template writes stay whole.
//
//   const PromptCut cut{.side = Truncate::left, .tokenizer = tokenizer, .end = 1, .excess = 300};
//   bool fits = shorten_prompt({&chosen, &rejected}, cut, [&] { … render both again; tokens above the limit of the longer … });
//
// What is cut are the user's texts before the first answer that is learned, as one text: from its beginning (left) or its end (right), between
// tokens, never inside a special token or a character. At least one token of it is kept.
#pragma once

#include <functional>
#include <vector>

#include "data/row_format.h"
#include "data/sample.h"
#include "text/tokenizer.h"

namespace sluice {

struct PromptCut {
  Truncate side = Truncate::left;
  const Tokenizer& tokenizer;
  size_t end = 0;      // messages before this one are the prompt
  int64_t excess = 0;  // by how many tokens the longest of the rows is too long
};

// Cuts the prompt that `rows` share, in all of them alike, by no more than it takes until `excess_now()` <= 0: tokens above the limit of the longest,
// rendered again. False, with the rows as they were, when the rest is too long by itself.
bool shorten_prompt(const std::vector<DataRow*>& rows, const PromptCut& cut,
                    const std::function<int64_t()>& excess_now);

}  // namespace sluice
