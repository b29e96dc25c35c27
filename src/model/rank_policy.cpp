#include "model/rank_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

using Entry = AdapterLayout::Entry;

constexpr const char* metadata_name = "optiq_metadata.json";

// "per_layer", in old files under "optimization".
Json per_layer(const Json& metadata) {
  if (!metadata.is_object()) return Json::object();
  if (metadata.contains("per_layer")) return metadata["per_layer"];
  return per_layer(metadata.value("optimization", Json()));
}

// Of each adapted module, in the layout's order. Names in the file are the checkpoint's own: "model.layers.3…", "language_model.model.layers.3…".
std::vector<double> read_kl(const Model& model, const AdapterLayout& layout) {
  const std::optional<Json> metadata = model.source->side_file(metadata_name);
  check(metadata.has_value(), ErrorCode::bad_config,
        fmt::format("rank_policy is by_kl, but {} has no {}; use by_bits or uniform", model.source->path(),
                    metadata_name));
  const Json listed = per_layer(*metadata);
  std::vector<double> values;
  for (const Entry& e : layout.entries()) {
    const std::string name = module_name(e.layer, e.module);
    double kl = -1;
    for (const auto& [key, about] : listed.items()) {
      if (key != name && !key.ends_with("." + name)) continue;
      if (about.is_object() && about.contains("kl") && about["kl"].is_number()) kl = about["kl"].get<double>();
    }
    check(
        std::isfinite(kl) && kl >= 0, ErrorCode::bad_config,
        fmt::format("rank_policy is by_kl, but {} in {} has no kl for {}; use by_bits or uniform, or leave the module "
                    "out of lora_parameters.keys",
                    metadata_name, model.source->path(), name));
    values.push_back(kl);
  }
  return values;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> factors(const Model& model, const AdapterLayout& layout, RankPolicy policy) {
  std::vector<double> all;
  if (policy == RankPolicy::by_bits) {
    for (const Entry& e : layout.entries())
      all.push_back(static_cast<double>(code_bits(linear_of(model, e.layer, e.module).weight)) / 4);
    return all;
  }
  all = read_kl(model, layout);
  const double middle = median(all);
  check(middle > 0, ErrorCode::bad_config,
        fmt::format("rank_policy is by_kl, but the median kl of the adapted modules in {} is 0; use by_bits or uniform",
                    metadata_name));
  for (double& kl : all) kl = std::clamp(kl / middle, 0.5, 2.0);
  return all;
}

}  // namespace

int64_t code_bits(const Weight& weight) {
  switch (weight.format) {
    case WeightFormat::f32: return 32;
    case WeightFormat::f16:
    case WeightFormat::bf16: return 16;
    case WeightFormat::affine: return weight.bits;
    case WeightFormat::q4_0:
    case WeightFormat::q4_1:
    case WeightFormat::q4_k: return 4;
    case WeightFormat::q5_0:
    case WeightFormat::q5_1:
    case WeightFormat::q5_k: return 5;
    case WeightFormat::q6_k: return 6;
    case WeightFormat::q8_0: return 8;
  }
  return 0;
}

AdapterSpec with_ranks(const Model& model, AdapterSpec spec, RankPolicy policy) {
  if (policy == RankPolicy::uniform) return spec;
  const AdapterLayout layout(model.config, spec);  // what is adapted
  const std::vector<double> by = factors(model, layout, policy);
  const auto rank = static_cast<double>(spec.rank);
  const auto given = static_cast<std::ptrdiff_t>(spec.rank_pattern.size());
  for (size_t i = 0; i < by.size(); ++i) {
    const Entry& e = layout.entries()[i];
    const std::string name = "model." + module_name(e.layer, e.module);
    const bool by_user = std::any_of(spec.rank_pattern.begin(), spec.rank_pattern.begin() + given,
                                     [&](const auto& pattern) { return names_module(pattern.first, name); });
    if (by_user) continue;
    const int64_t own = std::max<int64_t>(1, static_cast<int64_t>(std::floor(rank * by[i] + 0.5)));
    spec.rank_pattern.emplace_back(name, own);
    if (!spec.rank_stabilised)
      spec.alpha_pattern.emplace_back(name, static_cast<double>(spec.alpha) * static_cast<double>(own) / rank);
  }
  return spec;
}

std::string rank_table(const AdapterLayout& layout) {
  struct Run {
    int64_t first, last;
    std::string ranks;
  };
  std::vector<Run> runs;
  const std::vector<Entry>& entries = layout.entries();
  for (size_t i = 0; i < entries.size();) {
    Run run{entries[i].layer, entries[i].layer, ""};
    for (; i < entries.size() && entries[i].layer == run.first; ++i) {
      const std::string_view path = module_path(entries[i].module);
      run.ranks +=
          fmt::format("{}{} {}", run.ranks.empty() ? "" : ", ", path.substr(path.rfind('.') + 1), entries[i].rank);
    }
    if (!runs.empty() && runs.back().ranks == run.ranks && runs.back().last + 1 == run.first)
      runs.back().last = run.last;
    else runs.push_back(std::move(run));
  }
  std::string text;
  for (const Run& run : runs) {
    const std::string layers =
        run.first == run.last ? fmt::format("layer {}", run.first) : fmt::format("layers {}-{}", run.first, run.last);
    text += fmt::format("  {:<14} {}\n", layers, run.ranks);
  }
  return text;
}

}  // namespace sluice
