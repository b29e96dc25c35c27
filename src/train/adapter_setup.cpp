#include "train/adapter_setup.h"

#include "ops/common/host_floats.h"

namespace sluice {

namespace {

AdapterSpec adapter_spec(const TrainConfig& config) {
  AdapterSpec spec{.rank = config.rank,
                   .dora = config.fine_tune_type == "dora",
                   .rank_stabilised = config.rs_lora,
                   .dropout = static_cast<float>(config.dropout),
                   .targets = config.keys,
                   .last_layers = config.num_layers};
  // PEFT's word for every linear layer.
  if (config.keys == std::vector<std::string>{"all-linear"}) spec.targets.clear();
  const auto split = [](const std::string& entry) {
    const size_t equals = entry.find('=');
    return std::pair(entry.substr(0, equals), std::stod(entry.substr(equals + 1)));
  };
  for (const std::string& entry : config.rank_pattern)
    spec.rank_pattern.emplace_back(split(entry).first, static_cast<int64_t>(split(entry).second));
  for (const std::string& entry : config.alpha_pattern) spec.alpha_pattern.push_back(split(entry));
  spec.alpha = static_cast<float>(config.alpha > 0 ? config.alpha : config.scale * static_cast<double>(config.rank));
  return spec;
}

}  // namespace

AdapterLayout adapter_layout(const TrainConfig& config, const Model& model) {
  const RankPolicy policy = config.rank_policy == "by_bits" ? RankPolicy::by_bits
                            : config.rank_policy == "by_kl" ? RankPolicy::by_kl
                                                            : RankPolicy::uniform;
  return {model.config, with_ranks(model, adapter_spec(config), policy)};
}

std::string start_adapter(Context& ctx, const Model& model, const TrainConfig& config, const Adapter& adapter) {
  HostFloats flat(ctx, adapter.flat(), HostFloats::Content::unread);
  const bool loads = !config.resume_adapter_file.empty();
  std::string note;
  if (loads) note = load_adapter_into(config.resume_adapter_file, model.config, adapter.layout(), flat.data());
  else initialise_adapter(adapter.layout(), static_cast<uint64_t>(config.seed), flat.data());
  flat.write_back();
  if (!loads) start_magnitudes(ctx, model, adapter);
  return note;
}

int64_t resident_bytes(const AdapterLayout& layout) {
  Arena arena = Arena::counting(Device::cpu());
  for (int i = 0; i < 4; ++i) arena.tensor(DType::f32, {layout.size()});
  arena.tensor(DType::f32, {layout.num_norms()});
  return arena.peak();
}

}  // namespace sluice
