#include "train/run_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/device.h"
#include "io/hash.h"

namespace sluice {

namespace {

// Files, which `contents` stands for.
const std::set<std::string> paths = {"model",         "data",           "adapter_path",     "resume_adapter_file",
                                     "chat_template", "eval_task_data", "reference_adapter"};

// What changes no bit of a step, and the length of the run.
const std::set<std::string> free_settings = {
    "resume",    "memory",           "host_memory", "threads",         "segment_size", "level",
    "tile",      "head_rows",        "offload",     "iters",           "max_steps",    "num_epochs",
    "max_hours", "steps_per_report", "save_every",  "save_total_limit"};

// Validations change a run only where they steer it.
const std::set<std::string> of_validation = {"steps_per_eval", "val_batches"};

Json flat(const Json& nested) {
  Json settings = Json::object();
  for (const auto& [name, value] : nested.items()) {
    if (!value.is_object()) settings[name] = value;
    else
      for (const auto& [inner, item] : value.items()) settings[fmt::format("{}.{}", name, inner)] = item;
  }
  return settings;
}

void append_blocks(const std::byte* data, int64_t size, std::string& bytes) {
  constexpr int64_t blocks = 16, block_bytes = 4096;
  if (data == nullptr) return;
  const int64_t part = std::min(size, block_bytes);
  for (int64_t i = 0; i < blocks; ++i)
    bytes.append(reinterpret_cast<const char*>(data) + (size - part) * i / (blocks - 1), static_cast<size_t>(part));
}

void append_weight(const Weight& w, std::string& bytes) {
  if (w.empty()) return;
  bytes += fmt::format("{} {} {} {} {};", to_string(w.format), w.rows, w.cols, w.bits, w.group_size);
  append_blocks(w.data, w.rows * w.row_bytes(), bytes);
  const int64_t scales = (w.size_bytes() - w.rows * w.row_bytes()) / 2;  // 0 without them
  append_blocks(w.scales, scales, bytes);
  append_blocks(w.biases, scales, bytes);
}

void append_vector(Tensor t, std::string& bytes) {
  if (!t.empty()) bytes.append(static_cast<const char*>(t.data), static_cast<size_t>(t.size_bytes()));
}

}  // namespace

std::string hash_of_text(const std::string& bytes) { return sha256(std::as_bytes(std::span(bytes))); }

bool steered_by_validation(const TrainConfig& config) {
  return config.orpo_lambda_mode == "adaptive" || config.early_stopping_patience > 0;
}

Json run_identity(const TrainConfig& config, Json contents) {
  const bool steered = steered_by_validation(config);
  Json settings = Json::object();
  const Json all = flat(to_json(config));
  for (const auto& [name, value] : all.items()) {
    if (paths.contains(name) || free_settings.contains(name) || (!steered && of_validation.contains(name))) continue;
    settings[name] = value;
  }
  // However it is spelled.
  Json arguments = Json::parse(config.chat_template_args, nullptr, false);
  if (arguments.is_object()) settings["chat_template_args"] = std::move(arguments);
  settings["mask_prompt"] = config.mask_prompt != "false";  // the others learn the same of a row, or refuse it
  // Whichever of several devices of one kind.
  settings["device"] = parse_device(config.device).type == DeviceType::cuda ? "cuda" : "cpu";
  // auto is by_rows; blocks round the head's gradient otherwise.
  if (config.head != "by_blocks") settings["head"] = "by_rows";
  return {{"settings", settings}, {"contents", std::move(contents)}};
}

std::vector<std::string> identity_differences(const Json& was, const Json& now) {
  const Json defaults = run_identity({}, {})["settings"];
  const Json &old = was.at("settings"), &contents = was.at("contents");
  std::vector<std::string> differences;
  for (const auto& [name, value] : now["settings"].items()) {
    const Json before = old.value(name, defaults.value(name, Json()));
    if (before != value) differences.push_back(fmt::format("{} is {}, was {}", name, value.dump(), before.dump()));
  }
  for (const auto& [name, hash] : now["contents"].items()) {
    const Json before = contents.value(name, Json());
    if (before != hash)
      differences.push_back(fmt::format("{} has other contents (sha256 {}, was {})", name, hash.dump(), before.dump()));
  }
  return differences;
}

std::string base_hash(const Model& model) {
  std::string bytes = model.source->config().dump();
  for (const Weight* w : {&model.embedding, &model.head, &model.input_table, &model.input_projection})
    append_weight(*w, bytes);
  for (Tensor t : {model.final_norm, model.input_norm}) append_vector(t, bytes);
  for (const DecoderLayer& l : model.layers) {
    for (Tensor t :
         {l.input_norm, l.mlp_norm, l.post_attention_norm, l.post_mlp_norm, l.post_input_norm, l.q_norm, l.k_norm})
      append_vector(t, bytes);
    for (const LoraLinear* linear :
         {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_projection}) {
      append_weight(linear->weight, bytes);
      append_vector(linear->bias, bytes);
    }
  }
  return hash_of_text(bytes);
}

std::string adapter_hash(const LoadedAdapter& adapter) {
  std::string bytes;
  for (const AdapterLayout::Entry& e : adapter.layout.entries())
    bytes += fmt::format("{} {} {};", module_name(e.layer, e.module), e.rank, e.scale);
  bytes.append(reinterpret_cast<const char*>(adapter.flat.data()), adapter.flat.size() * sizeof(float));
  return hash_of_text(bytes);
}

}  // namespace sluice
