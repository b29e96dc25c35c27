// A frozen base model: mapped weights, and its decoder layers.
//
//   std::unique_ptr<Model> model = load_model("SmolLM2-135M-Instruct.Q4_1.gguf");
//   model->config.num_layers;  model->layers[3].forward(ctx, batch, adapter, x, y, saved, nullptr, {});
//   model->device = Device::cuda();  model->upload();   // before the first op on that device
//
// Weights stay as the file holds them; only norms, biases and scalars are copied (float32). The streaming of a step over the layers is
// in train/, decoding in infer/.
//
// On a CUDA device the weights lie in one allocation, each as its file holds it, at a multiple of 256 bytes. Tables that are only read by
// row (an embedding that is not the head, Gemma 4's per-layer inputs) stay in the mapped file: their rows are gathered on the host.
#pragma once

#include <memory>
#include <optional>
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
  Device device;  // where ops on this model run; set before upload()

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
  int64_t device_bytes() const;  // what upload() takes on a CUDA device; 0 on the CPU

  // Copies the weights to the device; nothing on the CPU. From then on Weight::data and the norms are the device's, except in tables read by
  // row. Throws Error(out_of_memory), Error(device).
  void upload();
  // Random weights instead, for benchmarks of shapes whose files are headers only: f32, bf16 and affine formats.
  void upload_random(uint64_t seed);

 private:
  friend std::unique_ptr<Model> load_model(std::unique_ptr<WeightSource> source);
  bool on_device(const Weight& weight) const;
  void gather(Context& ctx, const Weight& table, Tensor ids, float scale, Tensor y) const;
  template <class Place>
  void place(Arena& arena, Place place_bytes);
  template <class Place>
  void move_to_device(Place place_bytes);

  std::vector<std::unique_ptr<std::vector<float>>> vectors_;
  std::optional<Arena> device_memory_;
  mutable std::optional<Arena> staging_;  // pinned; rows of host tables on their way to the device
};

const LoraLinear& linear_of(const Model& model, int64_t layer, Module module);

// Reads config and tensors. Throws Error(bad_file) for a missing tensor or a shape that disagrees, Error(bad_config) for an
// architecture that is not supported, naming it and those that are.
std::unique_ptr<Model> load_model(std::unique_ptr<WeightSource> source);
std::unique_ptr<Model> load_model(const std::string& path);

// The config alone, for planning and inspection.
ModelRecipe read_recipe(const WeightSource& source);

}  // namespace sluice
