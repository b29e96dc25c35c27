// Prefill and decode speed on a model file, as one line of JSON: the job of bench/peers/llama_cpp_speed.py.
//
//   infer_speed --model model.gguf --prompt 512 --decode 128 --threads 2
//   infer_speed --device cuda --shape llama-3.1-8b --format affine4     random weights, made on the device
#include <CLI/CLI.hpp>
#include <iostream>
#include <vector>

#include "infer/generate.h"
#include "model_choice.h"
#include "timing.h"

namespace sluice {
namespace {

struct Options : bench::ModelChoice {
  int64_t prompt = 512, decode = 128;
  int threads = 2, repeats = 5;
};

Json measure(const Options& options) {
  const auto model = bench::open(options);
  bench::upload(*model, options);
  ThreadPool pool(options.threads);
  Generator generator(pool, *model, {.max_sequences = 1, .max_tokens = options.prompt + options.decode + 2});
  // The first new token comes from the prefill.
  GenerateRequest request{.prompt = {}, .stop_ids = {}, .max_new_tokens = options.decode + 1, .sampler = {}};
  for (int64_t i = 0; i < options.prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>((i * 7919 + 13) % model->config.vocab_size));
  }
  std::vector<double> prefill, decode;
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    const GenerateResult result = generator.generate(request, Adapter());
    if (repeat == 0) continue;  // warms up
    prefill.push_back(static_cast<double>(options.prompt) / result.prefill_seconds);
    decode.push_back(static_cast<double>(result.tokens.size() - 1) / result.decode_seconds);
  }
  return {{"peer", "sluice"},
          {"model", options.shape.empty() ? options.model : options.shape},
          {"device", options.device},
          {"prompt", options.prompt},
          {"decode", options.decode},
          {"threads", options.threads},
          {"prefill_tokens_per_second", bench::median(prefill)},
          {"decode_tokens_per_second", bench::median(decode)}};
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("Times a prefill and the decoding after it");
  sluice::bench::add_options(app, options);
  app.add_option("--prompt", options.prompt, "tokens of the prompt");
  app.add_option("--decode", options.decode, "tokens decoded after it, one at a time");
  app.add_option("--threads", options.threads);
  app.add_option("--repeats", options.repeats, "measured, after one to warm up");
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << sluice::measure(options).dump() << "\n";
  } catch (const sluice::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  return 0;
}
