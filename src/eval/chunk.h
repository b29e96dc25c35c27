// The score of the chunk segmentation example (examples/chunk): where each topic of a conversation begins, and its name.
//
//   ChunkCase c = chunk_case(row);                        // a row of heldout.jsonl
//   ChunkScore s = score_chunks(c, answer);               // s.total() from 0 to 100
//
// The answer asked for is {"chunks":[{"start":"ku","label":"the rain barrel"},…]}. Its parts, each from 0 to 1, and their weights:
//
//   json        6   the whole answer is one JSON value. With text around it the first object in it is judged all the same
//   schema      8   an object of "chunks", a list that is not empty, of objects of two strings "start" and "label", and no other keys.
//                   Otherwise all parts below are 0
//   ids         6   share of the chunks whose start is an id of the conversation that no chunk before it has
//   non_empty   5   share of the chunks whose label has a letter or digit
//   boundaries 40   F1 of the starts against the truth. The first message starts a chunk in every answer worth the name, so it does not count
//   labels     35   for each true chunk, the F1 of the words of its label against the label that the answer gives at that start; the sum is
//                   divided by the larger number of chunks
//
// Words are lower-cased and stripped of punctuation; the articles a, an, the do not count. So prose gets 0, an echo of the example in the
// prompt 13 to 19, a list of random messages with the right labels nothing for them, and the truth 100.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/chat_template.h"

namespace sluice {

struct Chunk {
  std::string start, label;
  bool operator==(const Chunk&) const = default;
};

struct ChunkCase {
  std::vector<ChatMessage> prompt;  // what the model is given
  std::vector<std::string> ids;     // of the messages of the conversation, in order
  std::vector<Chunk> truth;
};

// Throws Error(bad_file) when `row` is no such row; the caller adds file and line.
ChunkCase chunk_case(const Json& row);

struct ChunkScore {
  double json = 0, schema = 0, ids = 0, non_empty = 0, boundaries = 0, labels = 0;
  double total() const { return 6 * json + 8 * schema + 6 * ids + 5 * non_empty + 40 * boundaries + 35 * labels; }
};

ChunkScore score_chunks(const ChunkCase& chunk_case, std::string_view answer);

// The mean of each part; of nothing: zeros.
ChunkScore mean(const std::vector<ChunkScore>& scores);

}  // namespace sluice
