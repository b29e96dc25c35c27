// Log-probabilities under the frozen reference policy: the base, or the base with a named adapter.
//
//   const ReferencePolicy policy(model, config.reference_adapter);
//   policy.identity()   "the base without an adapter", "adapter runs/sft/last (3fa2…)"
//   ReferenceCache cache(out, key);  …
//
// They are computed once, before the first step, by the forward pass of training without dropout, one row at a time in the forest that training
// packs. With one row in a microbatch a policy that equals the reference has margin 0 to the bit; packed with others, to rounding.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/dora.h"
#include "train/objective.h"
#include "train/run_rows.h"

namespace sluice {

class ReferencePolicy {
 public:
  // An empty folder: the base. Throws as load_adapter.
  ReferencePolicy(const Model& model, const std::string& adapter_folder);

  const AdapterLayout* layout() const { return adapter_ ? &adapter_->layout : nullptr; }
  int64_t bytes() const { return adapter_ ? (adapter_->layout.size() + adapter_->layout.num_norms()) * 4 : 0; }
  // Changes when a weight of the base or of the adapter does; weights are sampled, not read whole.
  const std::string& key() const { return key_; }
  const std::string& identity() const { return identity_; }
  std::string note() const { return adapter_ ? adapter_->note : ""; }  // what the user should be told of the adapter

  // Sums by row (train/objective.h), of the rows that are wanted; zeros for the others. before_row may throw to end it.
  std::vector<PairReference> logps(Context& ctx, const RunRows& rows, const std::vector<bool>& wanted,
                                   const StepSettings& settings, const std::function<void()>& before_row);
  // Gives the adapter's memory back; key and identity stay.
  void forget();

 private:
  const Model& model_;
  std::string key_, identity_;
  std::optional<LoadedAdapter> adapter_;
};

// What a run keeps of it: reference_logps.safetensors in adapter_path, so that a resumed run reads the same bytes.
struct ReferenceLogps {
  std::vector<PairReference> train, valid;
  std::string hash() const;  // sha256
};
// Nothing when there is no file or it was made with another key, that is from another policy, other data or another precision.
std::optional<ReferenceLogps> load_reference(const std::string& out, const std::string& key);
void save_reference(const std::string& out, const std::string& key, const ReferenceLogps& logps);

}  // namespace sluice
