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

// Of each adapted module, in the layout's order; nothing where the file has no figure. Names in it are the checkpoint's own:
// "model.layers.3…", "language_model.model.layers.3…".
std::vector<std::optional<double>> read_kl(const Model& model, const AdapterLayout& layout) {
  const std::optional<Json> metadata = model.source->side_file(metadata_name);
  check(metadata.has_value(), ErrorCode::bad_config,
        fmt::format("rank_policy is by_kl, but {} has no {}; use by_bits or uniform", model.source->path(),
                    metadata_name));
  const Json listed = per_layer(*metadata);
  std::vector<std::optional<double>> values;
  for (const Entry& e : layout.entries()) {
    const std::string name = module_name(e.layer, e.module);
    std::optional<double> kl;
    for (const auto& [key, about] : listed.items()) {
      if (key != name && !key.ends_with("." + name)) continue;
      if (about.is_object() && about.contains("kl") && about["kl"].is_number()) kl = about["kl"].get<double>();
    }
    check(!kl || (std::isfinite(*kl) && *kl >= 0), ErrorCode::bad_config,
          fmt::format("{} in {}: the kl of {} is {}, needed 0 or more", metadata_name, model.source->path(), name,
                      kl.value_or(0)));
    values.push_back(kl);
  }
  return values;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

bool is_quantised(const Weight& weight) {
  return weight.format != WeightFormat::f32 && weight.format != WeightFormat::f16 &&
         weight.format != WeightFormat::bf16;
}

std::vector<double> factors(const Model& model, const AdapterLayout& layout, RankPolicy policy) {
  std::vector<double> all;
  if (policy == RankPolicy::by_bits) {
    for (const Entry& e : layout.entries()) {
      const Weight& weight = linear_of(model, e.layer, e.module).weight;
      all.push_back(is_quantised(weight) ? static_cast<double>(code_bits(weight)) / 4 : 1);
    }
    return all;
  }
  const std::vector<std::optional<double>> kl = read_kl(model, layout);
  for (const std::optional<double>& value : kl) {
    if (value) all.push_back(*value);
  }
  check(!all.empty(), ErrorCode::bad_config,
        fmt::format("rank_policy is by_kl, but {} in {} has no kl for any adapted module; use by_bits or uniform",
                    metadata_name, model.source->path()));
  const double middle = median(all);
  check(middle > 0, ErrorCode::bad_config,
        fmt::format("rank_policy is by_kl, but the median kl of the adapted modules in {} is 0; use by_bits or uniform",
                    metadata_name));
  all.clear();
  for (const std::optional<double>& value : kl) all.push_back(value ? std::clamp(*value / middle, 0.5, 2.0) : 1);
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
    const bool by_user =
        std::any_of(spec.rank_pattern.begin(), spec.rank_pattern.begin() + given,
                    [&](const auto& pattern) { return names_module(decoder_path(pattern.first), name); });
    if (by_user) continue;
    const int64_t own = std::max<int64_t>(1, static_cast<int64_t>(std::floor(rank * by[i] + 0.5)));
    spec.rank_pattern.emplace_back(name, own);
    if (!spec.rank_stabilised)
      spec.alpha_pattern.emplace_back(name, static_cast<double>(spec.alpha) * static_cast<double>(own) / rank);
  }
  return spec;
}

std::string without_figures(const Model& model, const AdapterLayout& layout) {
  const std::vector<std::optional<double>> kl = read_kl(model, layout);
  std::string names;
  int64_t count = 0;
  for (size_t i = 0; i < kl.size(); ++i) {
    if (kl[i] || ++count > 3) continue;
    names +=
        fmt::format("{}{}", count > 1 ? ", " : "", module_name(layout.entries()[i].layer, layout.entries()[i].module));
  }
  if (count == 0) return "";
  return fmt::format(
      "rank_policy by_kl: {} has no kl for {} of {} adapted modules ({}{}); they keep the rank that is set",
      metadata_name, count, kl.size(), names, count > 3 ? ", …" : "");
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
