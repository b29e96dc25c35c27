// Text generation: prefill through the training forward, then one token at a time for several sequences at once.
//
//   Generator generator(pool, *model, {.max_sequences = 8, .max_tokens = 2048});
//   std::vector<int32_t> out = generator.generate({.prompt = ids, .stop_ids = {2}, .max_new_tokens = 256}, adapter);
//
// The base is read in its stored form (fused matrix-vector kernels); adapters are chosen per call, never merged. A sequence's tokens depend
// on no other sequence of the batch. Dropout never applies here. Deterministic for a seed.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "infer/kv_cache.h"
#include "infer/sampler.h"

namespace sluice {

struct GenerateRequest {
  std::vector<int32_t> prompt;    // >= 1 token
  std::vector<int32_t> stop_ids;  // end the output; not part of it
  int64_t max_new_tokens = 256;
  SamplerOptions sampler;
};

enum class FinishReason : uint8_t { stop, length, cancelled };

struct GenerateResult {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::length;
  double prefill_seconds = 0, decode_seconds = 0;
  // Smallest gap between the best and the second-best logit that was met: how near greedy decoding came to another choice.
  float smallest_gap = 0;
};

struct GeneratorOptions {
  int64_t max_sequences = 1;
  int64_t max_tokens = 4096;  // prompt and output of one sequence
  DType dtype = DType::bf16;  // of the cache and of the prefill; f32 for exact tests
  Isa isa = detect_isa();
  // What memory is taken for at once: prompts of these lengths (none: the longest that fits, max_tokens - 1) and, beside the base alone, adapters
  // of these layouts. A call with others takes first what it needs more.
  std::vector<int64_t> prompts;
  std::vector<AdapterLayout> adapters;
};

class Generator {
 public:
  // Takes its arena at once: planned_bytes(). Throws Error(out_of_memory).
  Generator(ThreadPool& pool, const Model& model, const GeneratorOptions& options);
  ~Generator();

  // Called with each new token; false cancels the sequence.
  using OnToken = std::function<bool(size_t request, int32_t token)>;

  // All requests, at most max_sequences of them at a time, results in their order. An empty adapter is the base alone.
  // Throws Error(bad_config) for an empty prompt, one that leaves no room within max_tokens, or sampler settings out of range. One call at a time.
  std::vector<GenerateResult> generate(std::span<const GenerateRequest> requests, const Adapter& adapter,
                                       const OnToken& on_token = {});
  GenerateResult generate(const GenerateRequest& request, const Adapter& adapter, const OnToken& on_token = {});

  int64_t arena_bytes() const;
  int64_t arena_peak() const;  // the most of it that was used

  // What a generator of these options takes, from a run of the same calls on an arena that only counts.
  static int64_t planned_bytes(ThreadPool& pool, const Model& model, const GeneratorOptions& options);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
