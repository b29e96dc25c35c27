// What a generator plans is what it uses, to the byte, whatever the adapter.
#include <doctest/doctest.h>
#include <signal.h>

#include <cmath>
#include <limits>

#include "support/model_shapes.h"
#include "infer/generate.h"
#include "model/registry.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/oracle.h"

namespace sluice::test {

namespace {

// An adapter of random numbers.
struct RandomAdapter {
  AdapterLayout layout;
  std::vector<float> flat;

  RandomAdapter(const ModelConfig& config, int64_t rank)
      : layout(config, {.rank = rank, .alpha = 1}),
        flat(random_values(static_cast<size_t>(layout.size()), static_cast<uint32_t>(rank), 0.05F)) {}
  Adapter view() { return {layout, {.data = flat.data(), .dtype = DType::f32, .shape = {layout.size()}}}; }
};

std::vector<int32_t> prompt_of(int64_t length, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>((i * 7 + 3) % vocab_size);
  return ids;
}

std::unique_ptr<Model> tiny_model() {
  auto model = load_model((oracle_dir() / "llama-gqa").string());
  model->device = test_device();
  model->upload();
  return model;
}

}  // namespace

TEST_CASE("generator memory: what is planned for a prompt and an adapter is what they use, to the byte") {
  const auto model = tiny_model();
  ThreadPool pool(2);
  RandomAdapter small(model->config, 4), large(model->config, 512);
  for (int64_t length : {1, 70, 1024}) {
    for (RandomAdapter* adapter : {static_cast<RandomAdapter*>(nullptr), &small, &large}) {
      CAPTURE(length);
      GeneratorOptions options{.max_sequences = 2, .max_tokens = length + 9, .prompts = {length}};
      if (adapter != nullptr) options.adapters = {adapter->layout};
      Generator generator(pool, *model, options);
      CHECK(generator.arena_bytes() == Generator::planned_bytes(pool, *model, options));
      const GenerateRequest request{.prompt = prompt_of(length, model->config.vocab_size), .max_new_tokens = 8};
      const std::vector<GenerateRequest> both = {request, request};
      generator.generate(both, adapter != nullptr ? adapter->view() : Adapter());
      CHECK(generator.arena_peak() == generator.arena_bytes());
    }
  }
}

TEST_CASE(
    "generator memory: a call with another adapter or prompt than planned takes what it needs, and says the same") {
  const auto model = tiny_model();
  ThreadPool pool(2);
  RandomAdapter small(model->config, 4), large(model->config, 512);
  const GenerateRequest request{.prompt = prompt_of(300, model->config.vocab_size), .max_new_tokens = 6};
  Generator planned(pool, *model, {.max_tokens = 310, .prompts = {300}, .adapters = {small.layout, large.layout}});
  Generator grows(pool, *model, {.max_tokens = 310, .prompts = {1}});
  const int64_t before = grows.arena_bytes();
  for (RandomAdapter* adapter : {&small, &large, &small}) {
    CHECK(grows.generate(request, adapter->view()).tokens == planned.generate(request, adapter->view()).tokens);
  }
  CHECK(grows.arena_bytes() > before);
  CHECK(grows.arena_bytes() == planned.arena_bytes());
  CHECK(planned.arena_peak() == planned.arena_bytes());
}

TEST_CASE("generator memory: an adapter of rank 512 on a model of 8B is priced, not guessed") {
  const auto model = bench::llama_of_shape({4096, 14336, 32, 32, 8, 128, 128256, 500000}, true);
  ThreadPool pool(2);
  GeneratorOptions options{.max_tokens = 1100, .prompts = {1024}};
  const int64_t base = Generator::planned_bytes(pool, *model, options);
  options.adapters = {AdapterLayout(model->config, {.rank = 8})};
  const int64_t small = Generator::planned_bytes(pool, *model, options);
  options.adapters.push_back(AdapterLayout(model->config, {.rank = 512}));
  const int64_t large = Generator::planned_bytes(pool, *model, options);
  CHECK(small >= base);
  CHECK(large > base + (8 << 20) + (64 << 10));  // what was once added for any adapter
}

TEST_CASE("generator: leaves the handlers of signals alone") {
  const auto handlers = [] {
    std::vector<void*> all;
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGSEGV, SIGBUS, SIGABRT}) {
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      all.push_back(reinterpret_cast<void*>(action.sa_handler));
    }
    return all;
  };
  const auto before = handlers();
  const auto model = tiny_model();
  ThreadPool pool(2);
  Generator generator(pool, *model, {.max_tokens = 16});
  generator.generate(GenerateRequest{.prompt = {1, 2, 3}, .max_new_tokens = 4}, {}, [&](size_t, int32_t) {
    CHECK(handlers() == before);
    return true;
  });
  CHECK(handlers() == before);
}

TEST_CASE("generator: settings of the sampler that are no numbers or out of range are refused by name") {
  const auto model = tiny_model();
  ThreadPool pool(1);
  Generator generator(pool, *model, {.max_tokens = 16});
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto message = [&](const SamplerOptions& sampler) -> std::string {
    std::vector<float> logits = {1, 2, 3};
    CHECK_THROWS_AS(sample(logits, {}, sampler, 0), Error);
    try {
      generator.generate(GenerateRequest{.prompt = {1}, .max_new_tokens = 1, .sampler = sampler}, {});
    } catch (const Error& e) {
      return e.code() == ErrorCode::bad_config ? e.what() : "";
    }
    return "";
  };
  for (double bad : {nan, inf, -1.0, 101.0}) CHECK(message({.temperature = bad}).starts_with("temperature is "));
  for (double bad : {nan, -0.1, 1.5}) CHECK(message({.temperature = 1, .top_p = bad}).starts_with("top_p is "));
  for (double bad : {nan, inf, 0.0, -2.0})
    CHECK(message({.repetition_penalty = bad}).starts_with("repetition_penalty is "));
  CHECK(message({.top_k = -1}).starts_with("top_k is "));
  CHECK(message({.repetition_context = -1}).starts_with("repetition_context is "));
}

}  // namespace sluice::test
