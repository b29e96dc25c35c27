#include "model/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sluice {

namespace {

double number(const Json& object, const char* key, const std::string& where) {
  check(object.contains(key) && object[key].is_number(), ErrorCode::bad_config,
        fmt::format("{}: rope_scaling has no number '{}'", where, key));
  return object[key].get<double>();
}

double number_or(const Json& object, const char* key, double otherwise) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : otherwise;
}

void scale_llama3(std::vector<double>& f, const Json& s, const std::string& where) {
  const double factor = number(s, "factor", where), low = number(s, "low_freq_factor", where);
  const double high = number(s, "high_freq_factor", where),
               original = number(s, "original_max_position_embeddings", where);
  check(high > low, ErrorCode::bad_config,
        fmt::format("{}: rope_scaling needs high_freq_factor > low_freq_factor", where));
  for (double& fi : f) {
    const double turns = original * fi / (2 * std::numbers::pi);
    if (turns > high) continue;
    const double smooth = turns < low ? 0 : (turns - low) / (high - low);
    fi *= smooth + (1 - smooth) / factor;
  }
}

void scale_yarn(RopeConfig& rope, const Json& s, double theta, int64_t head_dim, const std::string& where) {
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    check(!s.contains(key) || s[key].is_null(), ErrorCode::bad_config,
          fmt::format("{}: rope_scaling.{} is not supported with yarn", where, key));
  }
  const double factor = number(s, "factor", where), original = number(s, "original_max_position_embeddings", where);
  const auto D = static_cast<double>(head_dim);
  const auto correction = [&](double rotations) {
    return D * std::log(original / (2 * std::numbers::pi * rotations)) / (2 * std::log(theta));
  };
  double low = correction(number_or(s, "beta_fast", 32)), high = correction(number_or(s, "beta_slow", 1));
  if (!s.contains("truncate") || s["truncate"] != false) {
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
  rope.factor = number_or(s, "attention_factor", factor <= 1 ? 1 : 0.1 * std::log(factor) + 1);
}

}  // namespace

std::vector<double> rope_frequencies(double theta, int64_t head_dim) {
  constexpr int64_t widest = 1 << 16;
  check(head_dim >= 2 && head_dim <= widest && head_dim % 2 == 0, ErrorCode::bad_config,
        fmt::format("the head dimension is {}, needed an even number from 2 to {}; is the config damaged?", head_dim,
                    widest));
  std::vector<double> f(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < f.size(); ++i)
    f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  return f;
}

RopeConfig rope_from_json(const Json& scaling, double theta, int64_t head_dim, const std::string& where) {
  RopeConfig rope{.frequencies = rope_frequencies(theta, head_dim)};
  if (scaling.is_null()) return rope;
  std::string type = "default";
  for (const char* key : {"type", "rope_type"}) {
    if (scaling.contains(key) && scaling[key].is_string()) type = scaling[key].get<std::string>();
  }
  if (type == "default") return rope;
  if (type == "linear") {
    for (double& f : rope.frequencies) f /= number(scaling, "factor", where);
  } else if (type == "llama3") {
    scale_llama3(rope.frequencies, scaling, where);
  } else if (type == "yarn") {
    scale_yarn(rope, scaling, theta, head_dim, where);
  } else {
    throw Error(
        ErrorCode::bad_config,
        fmt::format("{}: rope scaling '{}' is not supported; known: default, linear, llama3, yarn", where, type));
  }
  return rope;
}

}  // namespace sluice
