// Gemma 3 and Mistral as plain loops in float64 with a score for every pair of tokens: what windows are compared with. Reads the oracle's
// files with the oracle's own reader; nothing of the product takes part.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/oracle.h"

namespace sluice::test {

class DenseModel {
 public:
  using Row = std::vector<double>;
  using Matrix = std::vector<Row>;

  explicit DenseModel(const std::filesystem::path& folder)
      : tensors_(load_oracle_tensors(folder / "model.safetensors")),
        config_(Json::parse(read_whole_file(folder / "config.json"))) {
    gemma_ = config_["model_type"] == "gemma3_text";
    heads_ = config_["num_attention_heads"];
    kv_heads_ = config_["num_key_value_heads"];
    hidden_ = config_["hidden_size"];
    head_dim_ = config_.value("head_dim", hidden_ / heads_);
    scale_ = 1 / std::sqrt(gemma_ ? config_["query_pre_attn_scalar"].get<double>() : static_cast<double>(head_dim_));
  }

  // Logits of every row. `windowed` false: every layer sees everything, to show that the window matters.
  Matrix logits(const std::vector<int32_t>& ids, bool windowed = true) const {
    Matrix x;
    for (int32_t id : ids) {
      Row e = row("model.embed_tokens.weight", static_cast<size_t>(id));
      for (double& v : e) v *= gemma_ ? std::sqrt(static_cast<double>(hidden_)) : 1;
      x.push_back(e);
    }
    const int layers = config_["num_hidden_layers"];
    for (int l = 0; l < layers; ++l) layer(l, x, windowed);
    const std::string head = gemma_ ? "model.embed_tokens.weight" : "lm_head.weight";
    Matrix out;
    for (const Row& r : x) out.push_back(product(head, norm(r, "model.norm.weight")));
    return out;
  }

 private:
  Row row(const std::string& name, size_t index) const {
    const OracleTensor& t = tensors_.at(name);
    const auto width = static_cast<size_t>(t.shape.back());
    return {t.values.begin() + static_cast<std::ptrdiff_t>(index * width),
            t.values.begin() + static_cast<std::ptrdiff_t>((index + 1) * width)};
  }

  Row product(const std::string& name, const Row& x) const {
    const OracleTensor& t = tensors_.at(name);
    Row y(static_cast<size_t>(t.shape[0]), 0.0);
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += t.values[o * x.size() + i] * x[i];
    }
    return y;
  }

  Row norm(const Row& x, const std::string& name) const {
    const Row& w = tensors_.at(name).values;
    Row y(x);
    for (size_t group = 0; group < x.size(); group += w.size()) {  // by head where the weight is a head's
      double square = 0;
      for (size_t i = 0; i < w.size(); ++i) square += x[group + i] * x[group + i];
      const double r = 1 / std::sqrt(square / static_cast<double>(w.size()) + config_["rms_norm_eps"].get<double>());
      for (size_t i = 0; i < w.size(); ++i) y[group + i] = x[group + i] * r * (w[i] + (gemma_ ? 1 : 0));
    }
    return y;
  }

  void rotate(Row& x, size_t position, double theta, double factor) const {
    const size_t D = static_cast<size_t>(head_dim_), half = D / 2;
    for (size_t head = 0; head < x.size(); head += D) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D)) / factor;
        const double a = x[head + i], b = x[head + half + i];
        x[head + i] = a * std::cos(angle) - b * std::sin(angle);
        x[head + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  Row attend(const Row& q, const Matrix& keys, const Matrix& values, size_t i, size_t window) const {
    const auto D = static_cast<size_t>(head_dim_);
    Row o(q.size(), 0.0);
    for (size_t h = 0; h < static_cast<size_t>(heads_); ++h) {
      const size_t kv = h / static_cast<size_t>(heads_ / kv_heads_) * D;
      Row p(keys.size(), 0.0);
      double sum = 0;
      for (size_t j = 0; j < keys.size(); ++j) {
        if (j > i || (window > 0 && i - j >= window)) continue;
        double score = 0;
        for (size_t d = 0; d < D; ++d) score += q[h * D + d] * keys[j][kv + d];
        sum += p[j] = std::exp(score * scale_);
      }
      for (size_t j = 0; j < keys.size(); ++j) {
        for (size_t d = 0; d < D; ++d) o[h * D + d] += p[j] / sum * values[j][kv + d];
      }
    }
    return o;
  }

  static void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  double activate(double z) const {
    if (!gemma_) return z / (1 + std::exp(-z));
    return z / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (z + 0.044715 * z * z * z)));
  }

  void layer(int l, Matrix& x, bool windowed) const {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    const bool sliding = !gemma_ || (l + 1) % config_["sliding_window_pattern"].get<int>() != 0;
    const double theta =
        gemma_ && sliding ? config_["rope_local_base_freq"].get<double>() : config_["rope_theta"].get<double>();
    const double factor = gemma_ && !sliding ? config_["rope_scaling"]["factor"].get<double>() : 1;
    const size_t window = sliding && windowed ? config_["sliding_window"].get<size_t>() : 0;
    Matrix q, k, v;
    for (size_t n = 0; n < x.size(); ++n) {
      const Row a = norm(x[n], p + "input_layernorm.weight");
      q.push_back(product(p + "self_attn.q_proj.weight", a));
      k.push_back(product(p + "self_attn.k_proj.weight", a));
      v.push_back(product(p + "self_attn.v_proj.weight", a));
      if (gemma_)
        q.back() = norm(q.back(), p + "self_attn.q_norm.weight"),
        k.back() = norm(k.back(), p + "self_attn.k_norm.weight");
      rotate(q.back(), n, theta, factor);
      rotate(k.back(), n, theta, factor);
    }
    for (size_t n = 0; n < x.size(); ++n) {
      Row out = product(p + "self_attn.o_proj.weight", attend(q[n], k, v, n, window));
      if (gemma_) out = norm(out, p + "post_attention_layernorm.weight");
      add(x[n], out);
      const Row f = norm(x[n], p + (gemma_ ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"));
      Row h = product(p + "mlp.gate_proj.weight", f);
      const Row up = product(p + "mlp.up_proj.weight", f);
      for (size_t i = 0; i < h.size(); ++i) h[i] = activate(h[i]) * up[i];
      Row m = product(p + "mlp.down_proj.weight", h);
      if (gemma_) m = norm(m, p + "post_feedforward_layernorm.weight");
      add(x[n], m);
    }
  }

  std::map<std::string, OracleTensor> tensors_;
  Json config_;
  bool gemma_ = false;
  int64_t heads_ = 0, kv_heads_ = 0, hidden_ = 0, head_dim_ = 0;
  double scale_ = 0;
};

}  // namespace sluice::test
