// Finding a model's files: the folder forms, the index of a sharded model, and what to say when something is missing.
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "io/affine.h"
#include "io/file_error.h"
#include "io/file_kind.h"
#include "io/gguf.h"
#include "io/json_file.h"
#include "io/weight_source.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr size_t max_index_bytes = 64 << 20;

bool path_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != ".." && *relative.begin() != ".";
}

// The real path of a shard. Throws when it leaves the folder.
fs::path resolve_shard(const fs::path& folder, const std::string& shard, const std::string& index) {
  auto refuse = [&](const char* problem) {
    bad_file(index, fmt::format("the entry \"{}\" {}", printable(shard), problem));
  };
  const fs::path relative(shard);
  if (shard.empty() || shard.find('\0') != std::string::npos) refuse("is no file name; download the index again");
  if (relative.is_absolute()) refuse("is an absolute path; shards must lie in the model's folder");
  for (const fs::path& part : relative) {
    if (part == "..") refuse("has \"..\"; shards must lie in the model's folder");
  }
  if (relative.extension() != ".safetensors") refuse("is no .safetensors file; download the index again");

  std::error_code error;
  const fs::path real_folder = fs::canonical(folder, error);
  const fs::path real = fs::canonical(folder / relative, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) refuse(fmt::format("cannot be opened: {}", error.message()).c_str());
  // A Hugging Face cache has snapshots/<revision>/x.safetensors -> ../../blobs/<hash>.
  const bool in_cache = real_folder.parent_path().filename() == "snapshots" &&
                        is_inside(real, real_folder.parent_path().parent_path() / "blobs");
  if (!is_inside(real, real_folder) && !in_cache)
    refuse("is a link that leaves the model's folder; copy the file there");
  return folder / relative;
}

// Tensor name -> shard, as the index has it.
std::map<std::string, std::string> read_index(const std::string& path) {
  const MappedFile file(path);
  if (file.size() > max_index_bytes) bad_file(path, "the index is larger than 64 MiB; download it again");
  std::map<std::string, std::string> shards;
  try {
    const auto* text = reinterpret_cast<const char*>(file.bytes().data());
    const auto index = nlohmann::json::parse(text, text + file.size());  // not ordered: names are looked up
    for (const auto& [tensor, shard] : index.at("weight_map").get_ref<const nlohmann::json::object_t&>())
      shards.emplace(tensor, shard.get<std::string>());
  } catch (const nlohmann::json::exception& e) {
    bad_file(path, fmt::format("is not a valid index ({}); download it again", printable(e.what(), 200)));
  }
  return shards;
}

// What to say of a folder without model.safetensors.
[[noreturn]] void no_model(const std::string& path) {
  if (const std::string kind = kind_of_folder(path); !kind.empty()) bad_file(path, kind);
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path, ignored)) names.insert(entry.path().filename().string());
  for (const std::string& name : names) {
    if (name.ends_with(".gguf"))
      bad_file(path, fmt::format("has no {}, but {}; give the path of that file", single_name, printable(name)));
  }
  for (const std::string& name : names) {
    if (name == "adapter_config.json" || name == "adapters.safetensors") {
      bad_file(path, "is an adapter, a base model is needed; give the base as the model and this as the adapter");
    }
    if (name.starts_with("model-") && name.ends_with(".safetensors")) {
      bad_file(path, fmt::format("has shards, but no {}; download the index too", index_name));
    }
    if (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".npz")) {
      bad_file(path, fmt::format("has {}, but no {}; convert the model to safetensors", printable(name), single_name));
    }
  }
  bad_file(path, fmt::format("has neither {} nor {}; is it the model's folder?", single_name, index_name));
}

}  // namespace

WeightSource::WeightSource() = default;
WeightSource::~WeightSource() = default;

void WeightSource::add_file(const std::string& path, TensorData data) {
  files_.push_back(std::make_unique<SafetensorsFile>(path, data));
}

void WeightSource::open_index(const std::string& index_path, TensorData data) {
  const std::map<std::string, std::string> index = read_index(index_path);
  std::map<std::string, const SafetensorsFile*> files;
  for (const auto& [name, shard] : index) {
    if (shard_paths_.count(shard) == 0) {
      const fs::path found = resolve_shard(path_, shard, index_path);
      shard_paths_[shard] = found.empty() ? shard : found.string();
      if (!found.empty()) add_file(found.string(), data);
      files[shard] = found.empty() ? nullptr : files_.back().get();
    }
    const SafetensorsFile* file = files[shard];
    tensors_[name] = {file == nullptr ? nullptr : file->find(name), &shard_paths_[shard]};
  }
}

void WeightSource::open_folder(TensorData data) {
  const fs::path folder(path_);
  const bool single = path_exists(folder / single_name), sharded = path_exists(folder / index_name);
  if (!single && !sharded) no_model(path_);
  if (!path_exists(folder / "config.json"))
    bad_file(path_, "has no config.json; copy it from where the model came from");
  config_ = read_json_file((folder / "config.json").string());
  if (!config_.is_object()) bad_file((folder / "config.json").string(), "is not a JSON object; download it again");
  if (single) {
    add_file((folder / single_name).string(), data);
    for (const StoredTensor& tensor : files_[0]->tensors()) tensors_[tensor.name] = {&tensor, &files_[0]->path()};
  } else {
    open_index((folder / index_name).string(), data);
  }
  settle_kind();
}

// MLX says "format": "mlx" in the safetensors metadata; quantised MLX models also have their settings in config.json.
void WeightSource::settle_kind() {
  bool mlx = has_mlx_quantization(config_, path_);
  for (const auto& file : files_) {
    for (const auto& [key, value] : file->metadata()) mlx = mlx || (key == "format" && value == "mlx");
  }
  kind_ = mlx ? SourceKind::mlx : SourceKind::huggingface;
}

void WeightSource::collect_names() {
  for (const auto& [name, slot] : tensors_) {
    if (slot.tensor == nullptr) continue;
    const size_t dot = name.rfind('.');
    const std::string_view last = dot == std::string::npos ? std::string_view{} : std::string_view(name).substr(dot);
    if (last == ".scales" || last == ".biases") {
      const std::string weight = name.substr(0, dot) + ".weight";
      const auto found = tensors_.find(weight);
      if (found != tensors_.end() && found->second.tensor != nullptr && is_affine(weight, *found->second.tensor))
        continue;
    }
    names_.push_back(name);
  }
}

void WeightSource::open_gguf(TensorData data) {
  kind_ = SourceKind::gguf;
  gguf_ = std::make_unique<GgufFile>(path_, data);
  const GgufValue* splits = gguf_->get("split.count");
  if (splits != nullptr && splits->integer().value_or(0) > 1) {
    bad_file(path_,
             fmt::format("is one of {} parts of a model; join them with llama-gguf-split --merge", *splits->integer()));
  }
  const GgufValue* type = gguf_->get("general.type");
  if (type != nullptr && type->string() == "adapter") {
    bad_file(path_, "is an adapter, a base model is needed; give the base as the model and this as the adapter");
  }
  config_ = gguf_metadata_json(gguf_->header());
  for (const StoredTensor& tensor : gguf_->tensors()) tensors_[tensor.name] = {&tensor, &gguf_->path()};
}

std::optional<Json> WeightSource::side_file(std::string_view name) const {
  SLUICE_ASSERT(!name.empty() && name.find('/') == std::string_view::npos);
  if (kind_ == SourceKind::gguf) return std::nullopt;
  return read_json_file_if_present((fs::path(path_) / name).string());
}

std::unique_ptr<WeightSource> open_model(const std::string& path, OpenOptions options) {
  const TensorData data = options.allow_header_only ? TensorData::may_be_absent : TensorData::required;
  std::unique_ptr<WeightSource> source(new WeightSource);
  source->path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) bad_file(path, "does not exist; give the path of a model's folder or of a .gguf file");
  if (fs::is_directory(status)) {
    source->open_folder(data);
  } else if (fs::path(path).extension() == ".safetensors") {
    bad_file(path, "is a single safetensors file; give the folder that holds it and config.json");
  } else {
    const std::optional<FileKind> kind = kind_of_file(path);
    if (kind && kind->name != "a GGUF file") {
      bad_file(path, fmt::format("is {}, needed a model's folder or a .gguf file{}", kind->name,
                                 kind->remedy.empty() ? "" : "; " + kind->remedy));
    }
    source->open_gguf(data);
  }
  source->collect_names();
  return source;
}

}  // namespace sluice
