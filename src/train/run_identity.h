// What a resumed run must share with the run it goes on with: settings that change a step, and the contents of the files they name.
//
//   Json now = run_identity(config, {{"model", base_hash(model)}, {"data", hash_of_rows}});
//   for (const std::string& difference : identity_differences(checkpoint.state.run, now)) …
//
// It is kept readable in state.json: {"settings": {name: value}, "contents": {name: sha256}}. Paths are not in it, so that another spelling of
// the same file, or the same files elsewhere, resume. Nor is the length of the run, which may change, nor what changes no bit of a step
// (memory, threads, schedule) or only what is reported and kept.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "model/adapter_file.h"
#include "model/model.h"
#include "train/config.h"

namespace sluice {

// Validations change lambda or the run's end, and belong to what is shared.
bool steered_by_validation(const TrainConfig& config);

Json run_identity(const TrainConfig& config, Json contents);

// A sentence part for each difference, such as "learning_rate is 0.005, was 0.001". A setting that `was` does not know had its default.
std::vector<std::string> identity_differences(const Json& was, const Json& now);

// The configuration, all norms, and of each matrix its shape, format and 16 blocks of 4 KiB spread over it: a file of 60 GB is not read whole,
// and a base that was trained further differs in every block. Before Model::upload().
std::string base_hash(const Model& model);

// Modules, ranks, scales and numbers, whatever the format of its file.
std::string adapter_hash(const LoadedAdapter& adapter);

std::string hash_of_text(const std::string& bytes);  // sha256

}  // namespace sluice
