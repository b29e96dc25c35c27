// The log-probabilities that Sluice gives every token of the vocabulary at every position, in float32, as JSON: what
// bench/peers/peft_compare.py compares with PEFT's. With --write a random adapter is saved first, as PEFT's format, and used.
//
//   adapter_logps --model DIR --adapter DIR [--write] --ids 5,17,3
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/rng.h"
#include "model/dora.h"
#include "model/registry.h"
#include "train/streamed_step.h"

int main(int argc, char** argv) try {
  using namespace sluice;
  std::string model_path, adapter_path;
  std::vector<int32_t> ids;
  bool write = false;
  CLI::App app("Prints log-probabilities of a model with an adapter");
  app.add_option("--model", model_path)->required();
  app.add_option("--adapter", adapter_path)->required();
  app.add_option("--ids", ids)->required()->delimiter(',');
  app.add_flag("--write", write, "make a random adapter and save it at --adapter");
  CLI11_PARSE(app, argc, argv);

  const auto model = load_model(model_path);
  if (write) {
    const AdapterLayout layout(model->config, {.rank = 8, .alpha = 16});
    std::vector<float> flat(static_cast<size_t>(layout.size()));
    for (size_t i = 0; i < flat.size(); ++i) flat[i] = 0.2F * (random_uniform(1, 1, i) - 0.5F);
    save_peft_adapter(adapter_path, layout, flat.data(), model_path, model->prefix);
  }
  LoadedAdapter adapter = load_adapter(adapter_path, model->config);
  const auto V = static_cast<int32_t>(model->config.vocab_size);
  std::vector<int32_t> rows, targets;
  for (int32_t t = 0; t < static_cast<int32_t>(ids.size()); ++t) {
    for (int32_t v = 0; v < V; ++v) rows.push_back(t), targets.push_back(v);
  }
  Arena arena = Arena::allocate(Device::cpu(), int64_t{1} << 30);
  ThreadPool pool(ThreadPool::default_threads());
  prepare_adapter(pool, *model, adapter);
  Context ctx{.arena = arena, .pool = pool};
  const Spans spans = Spans::one(static_cast<int64_t>(ids.size()));
  const Schedule schedule = Schedule::uniform(model->config.num_layers, 1, Level::input);
  const std::vector<float> logps =
      forward_logps(ctx, *model, adapter.view(), {.ids = ids, .spans = spans, .rows = rows, .targets = targets},
                    {.schedule = schedule, .dtype = DType::f32});
  Json table = Json::array();
  for (size_t t = 0; t < ids.size(); ++t)
    table.push_back(
        std::vector<float>(logps.begin() + static_cast<long>(t) * V, logps.begin() + static_cast<long>(t + 1) * V));
  std::cout << Json({{"ids", ids}, {"logps", table}}).dump() << "\n";
  return 0;
} catch (const sluice::Error& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
