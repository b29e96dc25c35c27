// One step on a preference pair of a real model: the prompt computed once with both answers as its children, the same pair as two separate
// sequences, and SFT on one sequence of as many tokens as the first.
//
//   preference_step --model model.gguf --layout forest|separate|sft --prompt 6144 --response 1024 --threads 2
//
// Random tokens, LoRA on every linear layer, ORPO on both answers (SFT: on the last 2 * response tokens), AdamW. The same schedule for all:
// each layer's input kept, one tile and one head chunk. One line of JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <vector>

#include "core/rng.h"
#include "data/preference.h"
#include "timing.h"
#include "train/objective.h"

namespace sluice {
namespace {

struct Options {
  std::string model, layout = "forest";
  int64_t prompt = 6144, response = 1024, rank = 16;
  int threads = 2, steps = 3;
};

PairSample random_pair(const Options& o, int64_t vocab_size) {
  PairSample pair;
  pair.shared = o.prompt;
  uint64_t stream = 5;
  for (Sample* s : {&pair.chosen, &pair.rejected}) {
    ++stream;
    for (int64_t t = 0; t < o.prompt + o.response; ++t) {
      const uint64_t bits = random_bits(1, t < o.prompt ? 5 : stream, static_cast<uint64_t>(t));
      s->ids.push_back(static_cast<int32_t>(bits % static_cast<uint64_t>(vocab_size)));
      s->supervised.push_back(t < o.prompt ? 0 : 1);
    }
  }
  return pair;
}

PreferenceBatch batch_of(const Options& o, int64_t vocab_size) {
  const PairSample pair = random_pair(o, vocab_size);
  if (o.layout != "sft") return pack_pairs({&pair}, {.share_prompt = o.layout == "forest"});
  Sample one = pair.chosen;
  one.ids.insert(one.ids.end(), pair.rejected.ids.begin() + o.prompt, pair.rejected.ids.end());
  one.supervised.resize(one.ids.size(), 1);
  PreferenceBatch batch{.tokens = pack({&one}), .labels = {}, .num_pairs = 1};
  batch.labels.assign(batch.tokens.targets.size(), {0, Part::chosen});
  return batch;
}

Json measure(const Options& o) {
  const auto model = load_model(o.model);
  const AdapterLayout layout(model->config, {.rank = o.rank, .alpha = 2 * static_cast<float>(o.rank)});
  const PreferenceBatch batch = batch_of(o, model->config.vocab_size);
  const Batch& b = batch.tokens;
  PlanRequest request{.model = *model, .layout = layout, .num_threads = o.threads};
  request.train = {{.spans = b.spans, .num_targets = b.num_targets()}};
  request.segment_size = 1;
  request.level = "input";
  request.tile = 1024;
  request.head_rows = 128;
  const Plan plan = make_plan(request);

  bench::TrainedAdapter run(layout, plan, o.threads);
  const Objective objective{.kind = o.layout == "sft" ? ObjectiveKind::sft : ObjectiveKind::orpo};

  std::vector<double> seconds;
  double loss = 0;
  for (int step = 0; step <= o.steps; ++step) {
    PreferenceMetrics metrics;
    const double s = bench::seconds_of([&] {
      loss = forward_backward(run.ctx, *model, run.adapter, run.grads,
                              {.ids = b.ids, .spans = b.spans, .rows = b.rows, .targets = b.targets},
                              {.schedule = plan.schedule}, [&](std::span<const float> logp, std::span<float> dlogp) {
                                return preference_loss(
                                    objective, {.targets = batch.labels, .logp = logp, .dlogp = dlogp, .num_pairs = 1},
                                    metrics);
                              });
      run.update(step + 1);
    });
    if (step > 0) seconds.push_back(s);  // the first warms up
  }
  return {{"layout", o.layout},
          {"tokens", b.num_tokens()},
          {"targets", b.num_targets()},
          {"visible_pairs", b.spans.visible_pairs()},
          {"threads", o.threads},
          {"schedule", plan.schedule.describe()},
          {"seconds_per_step", bench::median(seconds)},
          {"step_arena_bytes", run.arena.peak()},
          {"loss", loss}};
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options o;
  CLI::App app("Times one step on a preference pair");
  app.add_option("--model", o.model, "GGUF file or model folder")->required();
  app.add_option("--layout", o.layout)->check(CLI::IsMember({"forest", "separate", "sft"}));
  app.add_option("--prompt", o.prompt, "tokens");
  app.add_option("--response", o.response, "tokens of each answer");
  app.add_option("--rank", o.rank, "LoRA rank, on every linear layer");
  app.add_option("--threads", o.threads);
  app.add_option("--steps", o.steps, "measured, after one to warm up")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << sluice::measure(o).dump() << "\n";
  } catch (const sluice::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  return 0;
}
