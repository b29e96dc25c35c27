// A model folder of the oracle, loaded by Sluice, with the numbers to compare.
#pragma once

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "model/adapter_file.h"
#include "model/registry.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/oracle.h"
#include "train/streamed_step.h"

namespace sluice::test {

// The model where the tests compute (support/contexts.h).
inline std::unique_ptr<Model> on_test_device(std::unique_ptr<Model> model) {
  model->device = test_device();
  model->upload();
  return model;
}

// Folders of the oracle that hold a model of a supported family, quantised copies included. Mixtures of experts are refused by name, also those of a
// family whose dense models are read.
inline std::vector<std::string> oracle_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(oracle_dir())) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const Json config = Json::parse(read_whole_file(entry.path() / "config.json"));
    if (config.value("text_config", config).value("enable_moe_block", false)) continue;
    std::string type = config.value("model_type", "");
    for (const ModelFamily& family : model_families()) {
      if (type == family.name) names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct OracleSample {
  std::vector<int32_t> ids;
  int64_t prompt_len = 0;
};

struct OracleModel {
  Oracle oracle;
  std::unique_ptr<Model> model;
  Json samples;
  LoadedAdapter adapter;
  std::vector<float> grads;

  // The quantised copies have the samples and the adapter of the folder they were made from.
  explicit OracleModel(const std::string& name, const std::filesystem::path& dir = oracle_dir())
      : oracle(name, dir),
        model(on_test_device(load_model(oracle.path().string()))),
        samples(oracle.meta()["samples"]) {
    std::filesystem::path folder = oracle.path() / oracle.meta().value("adapter", "adapter");
    if (oracle.meta().contains("base_fixture"))
      samples = Oracle(oracle.meta()["base_fixture"].get<std::string>(), dir).meta()["samples"];
    adapter = load_adapter(folder.string(), model->config);
    grads.assign(adapter.flat.size(), 0.0F);
  }

  Adapter weights() { return adapter.view(); }
  Adapter gradient() {
    return {adapter.layout, {.data = grads.data(), .dtype = DType::f32, .shape = {adapter.layout.size()}}};
  }

  OracleSample sample(const std::string& name) const {
    const auto dash = name.rfind('_');
    if (name.starts_with("pref")) {
      const Json& pair = samples[name.substr(0, dash)];
      OracleSample s{.ids = pair["prompt"].get<std::vector<int32_t>>()};
      s.prompt_len = static_cast<int64_t>(s.ids.size());
      for (const Json& id : pair[name.substr(dash + 1)]) s.ids.push_back(id.get<int32_t>());
      return s;
    }
    return {.ids = samples[name]["ids"].get<std::vector<int32_t>>(),
            .prompt_len = samples[name].value("prompt_len", int64_t{0})};
  }

  Schedule schedule(int64_t segment_size = 1, Level level = Level::input) const {
    Schedule s = Schedule::uniform(model->config.num_layers, segment_size, level);
    s.tile = row_chunk;
    return s;
  }

  // log p(ids[t] | ids[0..t-1]), t = 1 …
  std::vector<double> logps(Context& ctx, const OracleSample& s, bool lora, DType dtype) {
    const Spans spans = Spans::one(static_cast<int64_t>(s.ids.size()));
    std::vector<int32_t> rows(s.ids.size() - 1), targets(s.ids.begin() + 1, s.ids.end());
    std::iota(rows.begin(), rows.end(), 0);
    const Schedule plan = schedule();
    return to_double(forward_logps(ctx, *model, lora ? weights() : Adapter(),
                                   {.ids = s.ids, .spans = spans, .rows = rows, .targets = targets},
                                   {.schedule = plan, .dtype = dtype}));
  }

  // Mean over the targets of all samples of -log p: the responses', or every token's. Fills grads. Samples are packed as roots.
  double sft(Context& ctx, const std::vector<OracleSample>& samples, bool full, DType dtype, const Schedule& plan,
             DropoutKey dropout = {}) {
    std::vector<Spans::Piece> pieces;
    std::vector<int32_t> ids, rows, targets;
    for (const OracleSample& s : samples) {
      const auto begin = static_cast<int32_t>(ids.size());
      pieces.push_back({-1, static_cast<int64_t>(s.ids.size())});
      for (size_t t = full ? 1 : static_cast<size_t>(s.prompt_len); t < s.ids.size(); ++t) {
        rows.push_back(begin + static_cast<int32_t>(t) - 1);
        targets.push_back(s.ids[t]);
      }
      ids.insert(ids.end(), s.ids.begin(), s.ids.end());
    }
    const Spans spans(pieces);
    std::fill(grads.begin(), grads.end(), 0.0F);
    Arena pinned = plan.offload ? test_arena(32 << 20) : Arena::counting(Device::cpu());
    return forward_backward(ctx, *model, weights(), gradient(),
                            {.ids = ids, .spans = spans, .rows = rows, .targets = targets},
                            {.schedule = plan, .dtype = dtype, .dropout = dropout, .pinned = &pinned},
                            [](std::span<const float> logp, std::span<float> dlogp) {
                              const double n = static_cast<double>(logp.size());
                              double loss = 0;
                              for (size_t m = 0; m < logp.size(); ++m) {
                                loss -= static_cast<double>(logp[m]) / n;
                                dlogp[m] = static_cast<float>(-1 / n);
                              }
                              return loss;
                            });
  }

  // The gradient of one half of a module's adapter, and the oracle's.
  std::vector<double> module_grad(const AdapterLayout::Entry& e, bool b) const {
    const auto begin = grads.begin() + (b ? e.b_offset : e.a_offset);
    return to_double(std::vector<float>(begin, begin + (b ? e.out * e.rank : e.rank * e.in)));
  }
};

constexpr double fp32_grad = 3e-4;  // relative, of the oracle's README

// Every gradient that the fixture has for `objective`.
inline void check_gradients(const OracleModel& m, const std::string& objective) {
  for (const AdapterLayout::Entry& e : m.adapter.layout.entries()) {
    for (bool b : {false, true}) {
      const std::string name = "grad/" + objective + "/" + module_name(e.layer, e.module) + (b ? "/B" : "/A");
      if (!m.oracle.has(name)) continue;
      CAPTURE(name);
      CHECK(relative_l2(m.module_grad(e, b), m.oracle.values(name)) < fp32_grad);
    }
  }
}

inline double mean_abs_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return a.empty() ? 0 : sum / static_cast<double>(a.size());
}

}  // namespace sluice::test
