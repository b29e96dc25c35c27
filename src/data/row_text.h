// A conversation to token ids, and what of them is learned with which weight.
//
//   TokenisedRow row = tokenise(parse_row(parse_object(line)), text, TrainOn::all_answers);
//   row.sample.supervised                                       // 1 where the token is a target
//
// The row is rendered whole by the model's chat template and tokenised in one pass; without a template, strings of prompt and completion are
// prompt, completion, EOS one after another. Text that is ready never sees a template: BOS where the tokenizer puts one, the text, EOS unless it ends
// with it; segments stand as they are. What is learned are ranges of bytes of that text, one or more for an answer, never token ids. A token
// is a target if it overlaps such a range: the one that holds the first character of an answer is learned, even where it begins with what stands
// before the answer (Mistral's form ' ' + content). The first token of a row is never a target, since nothing predicts it.
#pragma once

#include <string>

#include "data/model_text.h"
#include "data/row_format.h"
#include "data/sample.h"

namespace sluice {

struct TokenisedRow {
  Sample sample;
  bool rewritten = false;  // an answer is not in the text as the row has it
  // Keys of messages whose text the template does not write, such as the reasoning of earlier turns.
  std::vector<std::string> left_out;
  int64_t answers_without_token =
      0;  // answers that are to be learned, and none of their bytes is a token's that can be
};

// Throws Error(bad_file) without file and row, Error(bad_config) where the template refuses the conversation.
TokenisedRow tokenise(const DataRow& row, const ModelText& text, TrainOn train_on);

// The first message that is learned; the number of messages when there is none.
size_t first_learned(const DataRow& row, TrainOn train_on);

}  // namespace sluice
