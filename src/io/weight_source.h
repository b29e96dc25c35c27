// A model on disk as named weights and a configuration: the one interface from files to models.
//
//   std::unique_ptr<WeightSource> source = open_model("SmolLM2-135M");   // a folder, or a .gguf file
//   Weight w = source->need("model.layers.0.mlp.down_proj.weight");      // a view of the mapped file, as stored
//   std::vector<float> norm = source->read_vector("model.norm.weight");
//   int64_t width = source->config()["hidden_size"];
//
// Names are the file's own: Hugging Face or MLX names from a folder, GGUF names from a GGUF file; nothing is renamed,
// permuted or converted here. Weights stay valid while the source lives. Reading is thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/weight.h"
#include "io/safetensors.h"

namespace sluice {

class GgufFile;

enum class SourceKind : uint8_t { huggingface, mlx, gguf };
std::string_view to_string(SourceKind kind);

struct OpenOptions {
  // Accept files that end after their header: shapes are known, data is absent (for planning without the model).
  bool allow_header_only = false;
};

class WeightSource {
 public:
  ~WeightSource();
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  const std::string& path() const { return path_; }
  SourceKind kind() const { return kind_; }

  // What find() answers to, sorted. The .scales and .biases of an MLX quantised module belong to its .weight.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return tensors_.count(name) != 0; }

  // Nothing when the model has no such tensor. A tensor of one dimension has one row; of more than two, its outer
  // dimensions make the rows. With allow_header_only and no data, Weight::empty() is true and all else is set.
  // Throws Error(bad_file) for a tensor that cannot be used as it is: a dtype or quantisation that is not read (named, with
  // what to do), an MLX module whose shapes and config.json disagree, a shard that is listed but not there.
  std::optional<Weight> find(std::string_view name) const;
  Weight need(std::string_view name) const;  // find, and Error(bad_file) when there is no such tensor

  // Shape as written, outermost first; of an MLX quantised weight the shape it stands for.
  std::optional<std::vector<int64_t>> shape(std::string_view name) const;

  // All values of a small tensor (norms, biases, scalars) from F32, F16, BF16 or F64; zeros when its data is absent.
  // Throws Error(bad_file) when there is no such tensor or its dtype is another.
  std::vector<float> read_vector(std::string_view name) const;

  // config.json; from GGUF its metadata under the original keys, without arrays of the tokenizer and those longer than
  // 4,096 (gguf() has them).
  const Json& config() const { return config_; }

  // A further JSON file of the folder, such as generation_config.json; nothing when it is not there (never with GGUF).
  std::optional<Json> side_file(std::string_view name) const;

  const GgufFile* gguf() const { return gguf_.get(); }  // null unless kind() is gguf
  int64_t mapped_bytes() const;                         // sizes of all files mapped

 private:
  friend std::unique_ptr<WeightSource> open_model(const std::string& path, OpenOptions options);
  struct Slot {                  // where a name is
    const StoredTensor* tensor;  // null when its shard is missing
    const std::string* file;     // the file's path, for messages
  };

  WeightSource();
  void open_folder(TensorData data);
  void open_index(const std::string& index_path, TensorData data);
  void open_gguf(TensorData data);
  void add_file(const std::string& path, TensorData data);
  void settle_kind();
  void collect_names();
  const StoredTensor& present(std::string_view name, const Slot& slot) const;
  const StoredTensor* tensor(std::string_view name) const;  // null when absent
  bool is_affine(std::string_view name, const StoredTensor& weight) const;
  Weight affine_weight(std::string_view name, const StoredTensor& weight) const;

  std::string path_;
  SourceKind kind_ = SourceKind::huggingface;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::string> shard_paths_;  // shard as the index names it -> path
  std::unique_ptr<GgufFile> gguf_;
  std::map<std::string, Slot, std::less<>> tensors_;
  std::vector<std::string> names_;
  Json config_;
};

// `path` is a folder with config.json and model.safetensors, or model.safetensors.index.json and its shards, or a .gguf
// file. Shards stay inside the folder: an index entry that is absolute, has "..", or is a link that leaves the folder is
// refused (links into the blobs folder of a Hugging Face cache are followed). Throws Error(bad_file).
std::unique_ptr<WeightSource> open_model(const std::string& path, OpenOptions options = {});

}  // namespace sluice
