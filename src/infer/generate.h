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
};

class Generator {
 public:
  // Sizes its arena at once. Throws Error(out_of_memory).
  Generator(ThreadPool& pool, const Model& model, const GeneratorOptions& options);
  ~Generator();

  // Called with each new token; false cancels the sequence.
  using OnToken = std::function<bool(size_t request, int32_t token)>;

  // All requests, at most max_sequences of them at a time, results in their order. An empty adapter is the base alone.
  // Throws Error(bad_config) for an empty prompt or one that leaves no room within max_tokens.
  std::vector<GenerateResult> generate(std::span<const GenerateRequest> requests, const Adapter& adapter,
                                       const OnToken& on_token = {});
  GenerateResult generate(const GenerateRequest& request, const Adapter& adapter, const OnToken& on_token = {});

  int64_t arena_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
