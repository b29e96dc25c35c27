#include "model/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sluice {

namespace {

double needed(const ConfigReader& block, const std::string& key, const std::string& type) {
  check(block.has(key), ErrorCode::bad_config,
        fmt::format("{}: '{}' is missing, which rope type {} needs", block.where(), key, type));
  return block.positive_or(key, 0);
}

void scale_llama3(std::vector<double>& f, const ConfigReader& block, double original) {
  const double factor = needed(block, "factor", "llama3"), low = needed(block, "low_freq_factor", "llama3"),
               high = needed(block, "high_freq_factor", "llama3");
  check(high > low, ErrorCode::bad_config,
        fmt::format("{}: high_freq_factor is {} and low_freq_factor {}, needed the first above the second",
                    block.where(), high, low));
  for (double& fi : f) {
    const double turns = original * fi / (2 * std::numbers::pi);
    if (turns > high) continue;
    const double smooth = turns < low ? 0 : (turns - low) / (high - low);
    fi *= smooth + (1 - smooth) / factor;
  }
}

// The factor on cos and sin: given, or 0.1 m ln(factor) + 1, of mscale over mscale_all_dim where a block has both.
double yarn_attention_factor(const ConfigReader& block, double factor) {
  if (block.has("attention_factor")) return block.positive_or("attention_factor", 0);
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
  const double m = block.number_or("mscale", 0), all = block.number_or("mscale_all_dim", 0);
  return m != 0 && all != 0 ? scale(m) / scale(all) : scale(1);
}

// A beta of 0 is none given, as in transformers.
double beta(const ConfigReader& block, const char* key, double otherwise) {
  return block.number_or(key, 0) == 0 ? otherwise : block.positive_or(key, otherwise);
}

void scale_yarn(RopeConfig& rope, const ConfigReader& block, double theta, double original,
                const RopeDefaults& defaults) {
  // A factor that is null is the ratio of the lengths.
  const double factor = block.is_null("factor") && defaults.max_position_embeddings > 0
                            ? static_cast<double>(defaults.max_position_embeddings) / original
                            : needed(block, "factor", "yarn");
  check(theta != 1, ErrorCode::bad_config,
        fmt::format("{}: 'rope_theta' is 1, which yarn cannot scale", block.where()));
  const auto D = static_cast<double>(defaults.head_dim);
  const auto correction = [&](double rotations) {
    return D * std::log(original / (2 * std::numbers::pi * rotations)) / (2 * std::log(theta));
  };
  double low = correction(beta(block, "beta_fast", 32)), high = correction(beta(block, "beta_slow", 1));
  if (block.boolean_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, D - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double g = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    rope.frequencies[i] *= 1 - g + g / factor;
  }
  rope.factor = yarn_attention_factor(block, factor);
}

double original_positions(const ConfigReader& block, const RopeDefaults& defaults, const std::string& type) {
  const char* key = "original_max_position_embeddings";
  if (!block.has(key) && defaults.max_position_embeddings > 0)
    return static_cast<double>(defaults.max_position_embeddings);
  return needed(block, key, type);
}

std::string type_of(const ConfigReader& block) {
  return block.string_or("rope_type", block.string_or("type", "default"));
}

// Frequencies divided by what the file says; 1e30 stands for a pair that is not rotated.
void divide(RopeConfig& rope, const std::vector<float>& divisors, const std::string& path) {
  check(divisors.size() == rope.frequencies.size(), ErrorCode::bad_file,
        fmt::format("{}: rope_freqs.weight has {} entries, the head dimension needs {}", path, divisors.size(),
                    rope.frequencies.size()));
  for (size_t i = 0; i < divisors.size(); ++i) {
    check(std::isfinite(divisors[i]) && divisors[i] > 0, ErrorCode::bad_file,
          fmt::format("{}: rope_freqs.weight has {} at {}, needed numbers above 0", path, divisors[i], i));
    double& f = rope.frequencies[i];
    f = divisors[i] >= 1e29F ? 0 : f / static_cast<double>(divisors[i]);
  }
}

// Keys that llama.cpp reads for other architectures, with what they are where nothing is changed.
void refuse_other_gguf_keys(const ConfigReader& config) {
  constexpr std::pair<const char*, double> neutral[] = {
      {"rope.scaling.yarn_log_multiplier", 0}, {"rope.scaling.yarn_ext_factor", 1},
      {"rope.scaling.yarn_attn_factor", 1},    {"rope.scaling.yarn_beta_fast", 32},
      {"rope.scaling.yarn_beta_slow", 1},      {"rope.scaling.alpha", 0}};
  for (const auto& [key, value] : neutral) {
    const double found = config.number_or(key, value);
    check(found == value, ErrorCode::bad_config,
          fmt::format("{}: '{}' is {}; only {} is supported", config.where(), key, found, value));
  }
  config.refuse_if_present("rope.dimension_sections", "rotary sections are not supported");
}

}  // namespace

std::vector<double> rope_frequencies(double theta, int64_t head_dim, const std::string& where) {
  constexpr int64_t widest = 1 << 16;
  check(head_dim >= 2 && head_dim <= widest && head_dim % 2 == 0, ErrorCode::bad_config,
        fmt::format("{}: the head dimension is {}, needed an even number from 2 to {}; is the config damaged?", where,
                    head_dim, widest));
  std::vector<double> f(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < f.size(); ++i)
    f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  return f;
}

RopeConfig rope_from_json(const Json& parameters, const RopeDefaults& defaults, const std::string& where) {
  check(parameters.is_null() || parameters.is_object(), ErrorCode::bad_config,
        fmt::format("{}: rope parameters are {}, needed an object", where, parameters.dump().substr(0, 60)));
  const ConfigReader block(parameters.is_object() ? parameters : Json::object(), where + ": rope parameters");
  const double theta = block.positive_or("rope_theta", defaults.theta);
  const double share = block.number_or("partial_rotary_factor", 1);
  check(share == 1, ErrorCode::bad_config,
        fmt::format("{}: 'partial_rotary_factor' is {}; this architecture rotates whole heads", block.where(), share));
  RopeConfig rope{.frequencies = rope_frequencies(theta, defaults.head_dim, where)};
  const std::string type = type_of(block);
  if (type == "default") return rope;
  if (type == "linear") {
    for (double& f : rope.frequencies) f /= needed(block, "factor", type);
  } else if (type == "llama3") {
    scale_llama3(rope.frequencies, block, original_positions(block, defaults, type));
  } else if (type == "yarn") {
    scale_yarn(rope, block, theta, original_positions(block, defaults, type), defaults);
  } else {
    throw Error(
        ErrorCode::bad_config,
        fmt::format("{}: rope scaling '{}' is not supported; known: default, linear, llama3, yarn", where, type));
  }
  return rope;
}

Json rope_block(const ConfigReader& config) {
  const Json parameters = config.object_or("rope_parameters", Json::object()),
             scaling = config.object_or("rope_scaling", Json::object());
  for (const Json& part : {parameters, scaling}) {
    for (const auto& [key, value] : part.items())
      check(!value.is_object(), ErrorCode::bad_config,
            fmt::format("{}: its rope parameters have '{}'; this architecture has one rope for all layers",
                        config.where(), key));
  }
  Json block = scaling.empty() ? parameters : scaling;
  const ConfigReader chosen(block, config.where()), other(parameters, config.where());
  const double theta = chosen.number_or("rope_theta", config.number_or("rope_theta", 10000));
  check(other.number_or("rope_theta", theta) == theta, ErrorCode::bad_config,
        fmt::format("{}: rope_theta is {} for rope_scaling and {} in rope_parameters; leave one of the blocks out",
                    config.where(), theta, other.number_or("rope_theta", theta)));
  block["rope_theta"] = theta;
  if (config.has("partial_rotary_factor") && !block.contains("partial_rotary_factor"))
    block["partial_rotary_factor"] = config.number_or("partial_rotary_factor", 1);
  const char* original = "original_max_position_embeddings";
  if (config.has(original)) block[original] = config.integer(original);
  return block;
}

int64_t stretched_positions(const Json& block, int64_t max_position_embeddings) {
  const ConfigReader reader(block, "");
  const std::string type = type_of(reader);
  const double given = static_cast<double>(max_position_embeddings), factor = reader.number_or("factor", 1);
  if (type != "linear" && type != "yarn") return max_position_embeddings;
  const double from = type == "yarn" ? reader.number_or("original_max_position_embeddings", given) : given;
  return std::max(max_position_embeddings, static_cast<int64_t>(std::min(factor * from, 1e15)));
}

Json gguf_rope_block(const ConfigReader& config) {
  refuse_other_gguf_keys(config);
  // A factor of 0 is none.
  const double factor = config.number_or("rope.scaling.factor", config.number_or("rope.scale_linear", 0));
  const std::string type = config.string_or("rope.scaling.type", "linear");
  if (type == "none" || (type == "linear" && factor == 0)) return {{"rope_type", "default"}};
  Json block = {{"rope_type", type}, {"factor", factor == 0 ? 1 : factor}};
  const char* original = "rope.scaling.original_context_length";
  if (config.number_or(original, 0) != 0) block["original_max_position_embeddings"] = config.integer(original);
  return block;
}

void check_rotated(const ConfigReader& config, const std::string& key, int64_t head_dim) {
  const int64_t rotated = config.integer_or(key, head_dim);
  check(rotated == head_dim, ErrorCode::bad_config,
        fmt::format("{}: {} is {} and the head dimension {}; heads that are rotated in part are not supported",
                    config.where(), key, rotated, head_dim));
}

RopeConfig rope_from_gguf(const WeightSource& source, const ConfigReader& config, double theta, int64_t head_dim) {
  check_rotated(config, "rope.dimension_count", head_dim);
  const RopeDefaults defaults{
      .theta = theta, .head_dim = head_dim, .max_position_embeddings = config.integer_or("context_length", 0)};
  RopeConfig rope = rope_from_json(gguf_rope_block(config), defaults, config.where());
  rope.factor *= config.positive_or("rope.scaling.attn_factor", 1);
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    check(!source.contains(name), ErrorCode::bad_config,
          fmt::format("{}: it has {}; rope scaling by two sets of factors (longrope) is not supported", source.path(),
                      name));
  if (source.contains("rope_freqs.weight")) divide(rope, source.read_vector("rope_freqs.weight"), source.path());
  return rope;
}

}  // namespace sluice
