// The chunk segmentation task on a model: every case of a file answered and scored.
//
//   const ChunkTask task(model, text, pool, {.data = "examples/chunk/data/heldout.jsonl"});
//   const ChunkAnswers answers = task.run(adapter);       // answers.score().total() from 0 to 100
//
// Greedy, so deterministic. Memory is taken for the time of run().
#pragma once

#include <string>
#include <vector>

#include "data/model_text.h"
#include "eval/chunk.h"
#include "infer/generate.h"

namespace sluice {

struct ChunkTaskOptions {
  std::string data;  // .jsonl of cases
  int64_t max_new_tokens = 256;
  int64_t batch_size = 8;     // cases decoded at once
  int64_t limit = 0;          // only the first; 0: all
  DType dtype = DType::bf16;  // as of Generator
};

struct ChunkAnswers {
  struct Row {
    ChunkScore score;
    std::string answer;
    bool finished = false;  // by a stop token
  };
  std::vector<Row> rows;
  ChunkScore score() const;  // the mean of each part
};

class ChunkTask {
 public:
  // Throws Error(bad_file) with file and row; Error(bad_config) when the model has no chat template.
  ChunkTask(const Model& model, const ModelText& text, ThreadPool& pool, const ChunkTaskOptions& options);

  int64_t bytes(const AdapterLayout& layout) const;  // that run() takes with an adapter of this layout
  ChunkAnswers run(const Adapter& adapter) const;

 private:
  const Model& model_;
  const ModelText& text_;
  ThreadPool& pool_;
  std::vector<ChunkCase> cases_;
  std::vector<GenerateRequest> requests_;
  GeneratorOptions generator_;
};

}  // namespace sluice
