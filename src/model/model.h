// A frozen base model: mapped weights, and its decoder layers.
//
//   std::unique_ptr<Model> model = load_model("SmolLM2-135M-Instruct.Q4_1.gguf");
//   model->config.num_layers;  model->layers[3].forward(ctx, batch, adapter, x, y, saved, nullptr, {});
//
// Weights stay as the file holds them; only norms, biases and scalars are copied (float32). The streaming of a step over the layers is
// in train/, decoding in infer/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/weight_source.h"
#include "model/decoder_layer.h"

namespace sluice {

// How one family's config and tensor names are read. A family is one file that registers a function making this.
struct ModelRecipe {
  ModelConfig config;
  // Before "layers.0." and "embed_tokens.weight" in Hugging Face and MLX names; for GGUF, in those of the checkpoint it was made from.
  std::string prefix;
  bool permuted_qk = false;  // GGUF of the Llama architecture: rows of q and k interleaved
  bool qkv_bias = false;
};

struct Model {
  ModelConfig config;
  std::unique_ptr<WeightSource> source;
  std::string prefix;      // as in the recipe
  Weight embedding, head;  // head is the embedding where they are tied
  Tensor final_norm;       // [C] f32
  std::vector<DecoderLayer> layers;
  // Gemma 4's per-layer inputs: a table [V, L * P], a projection [L * P, C] and a norm [P]; empty elsewhere.
  Weight input_table, input_projection;
  Tensor input_norm;

  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // x[n] = embedding_scale * embedding[ids[n]]
  void embed(Context& ctx, Tensor ids, Tensor x) const;
  // u [N, L * P] from the ids and the embedding's output e [N, C]. Rows of the table are read for these tokens only.
  void layer_inputs(Context& ctx, Tensor ids, Tensor e, Tensor u) const;
  // Rotary tables of all kinds for these positions (host memory), from ctx.arena.
  std::vector<Tensor> rope_tables(Context& ctx, const std::vector<int32_t>& positions) const;

  int64_t num_weights() const;   // frozen numbers in the layers' linear weights
  int64_t weight_bytes() const;  // bytes of all mapped tensors that are used

 private:
  friend std::unique_ptr<Model> load_model(std::unique_ptr<WeightSource> source);
  std::vector<std::unique_ptr<std::vector<float>>> vectors_;
};

const LoraLinear& linear_of(const Model& model, int64_t layer, Module module);

// Reads config and tensors. Throws Error(bad_file) for a missing tensor or a shape that disagrees, Error(bad_config) for an
// architecture that is not supported, naming it and those that are.
std::unique_ptr<Model> load_model(std::unique_ptr<WeightSource> source);
std::unique_ptr<Model> load_model(const std::string& path);

// The config alone, for planning and inspection.
ModelRecipe read_recipe(const WeightSource& source);

}  // namespace sluice
