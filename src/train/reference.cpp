#include "train/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "train/run_identity.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

constexpr const char* file_name = "reference_logps.safetensors";

}  // namespace

ReferencePolicy::ReferencePolicy(const Model& model, const std::string& adapter_folder)
    : model_(model), key_(base_hash(model)), identity_(model.source->path() + " without an adapter") {
  if (adapter_folder.empty()) return;
  try {
    adapter_ = load_adapter(adapter_folder, model.config);
  } catch (Error& e) {
    throw e.while_doing("reference_adapter");
  }
  const std::string hash = adapter_hash(*adapter_);
  key_ += hash;
  identity_ = fmt::format("{} with the adapter {} ({})", model.source->path(), adapter_folder, hash.substr(0, 16));
}

void ReferencePolicy::forget() {
  if (!adapter_) return;
  std::vector<float>().swap(adapter_->flat);
  std::vector<float>().swap(adapter_->norms);
  adapter_->on_device.reset();
}

std::vector<PairReference> ReferencePolicy::logps(Context& ctx, const RunRows& rows, const std::vector<bool>& wanted,
                                                  const StepSettings& settings,
                                                  const std::function<void()>& before_row) {
  if (adapter_) prepare_adapter(ctx.pool, model_, *adapter_);
  const Adapter adapter = adapter_ ? adapter_->view() : Adapter();
  std::vector<PairReference> references(static_cast<size_t>(rows.size()));
  for (int64_t row = 0; row < rows.size(); ++row) {
    if (!wanted[static_cast<size_t>(row)]) continue;
    before_row();
    PairReference& reference = references[static_cast<size_t>(row)];
    const std::vector<PreferenceBatch> batches = rows.reference_batches(row);
    for (size_t b = 0; b < batches.size(); ++b) {
      const std::vector<float> logp = forward_logps(ctx, model_, adapter, step_batch(batches[b].tokens), settings);
      for (size_t m = 0; m < logp.size(); ++m) {
        const bool chosen = batches.size() == 2 ? b == 0 : batches[b].labels[m].part == Part::chosen;
        if (batches[b].labels[m].part == Part::prompt) continue;
        (chosen ? reference.chosen : reference.rejected) += static_cast<double>(logp[m]);
      }
    }
  }
  return references;
}

std::string ReferenceLogps::hash() const {
  std::string bytes;
  for (const std::vector<PairReference>* part : {&train, &valid})
    bytes.append(reinterpret_cast<const char*>(part->data()), part->size() * sizeof(PairReference));
  return hash_of_text(bytes);
}

std::optional<ReferenceLogps> load_reference(const std::string& out, const std::string& key) {
  const std::string path = (fs::path(out) / file_name).string();
  if (!fs::exists(path)) return std::nullopt;
  try {
    const SafetensorsFile file(path);
    const auto& metadata = file.metadata();
    const auto has = [&](const char* name, const std::string& value) {
      return std::find(metadata.begin(), metadata.end(), std::pair<std::string, std::string>(name, value)) !=
             metadata.end();
    };
    if (!has("key", key)) return std::nullopt;
    ReferenceLogps logps;
    for (const auto& [name, into] : {std::pair{"train", &logps.train}, std::pair{"valid", &logps.valid}}) {
      const StoredTensor* tensor = file.find(name);
      if (tensor == nullptr || tensor->dtype != "F64") return std::nullopt;
      into->resize(static_cast<size_t>(tensor->numel() / 2));
      if (!into->empty()) std::memcpy(into->data(), tensor->data.data(), tensor->data.size());
    }
    if (!has("sha256", logps.hash())) return std::nullopt;
    return logps;
  } catch (const Error&) {
    return std::nullopt;  // damaged: made again
  }
}

void save_reference(const std::string& out, const std::string& key, const ReferenceLogps& logps) {
  static_assert(sizeof(PairReference) == 2 * sizeof(double));
  const auto tensor = [](const char* name, const std::vector<PairReference>& sums) {
    return TensorToWrite{name, "F64", {static_cast<int64_t>(sums.size()), 2}, std::as_bytes(std::span(sums))};
  };
  write_safetensors((fs::path(out) / file_name).string(), {tensor("train", logps.train), tensor("valid", logps.valid)},
                    {{"key", key}, {"sha256", logps.hash()}});
}

}  // namespace sluice
