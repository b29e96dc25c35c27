// Checkpoints: folders that are whole or not there, and the pointers best and last.
//
//   out/step-0000100/   adapter_model.safetensors adapter_config.json   what PEFT loads
//                       optimizer.safetensors                           moments, float32
//                       chat_template.jinja generation_config.json      the render and the stop tokens of the training
//                       state.json                                      step, position in the data, what the run is
//   out/last, out/best  symbolic links to such folders
//
// A checkpoint is written under a temporary name, synced and renamed, so a killed or full run leaves the one before. There is no
// random state to keep: every random number is a function of the seed and a counter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "data/model_text.h"
#include "model/lora.h"

namespace sluice {

struct TrainState {
  int64_t step = 0;            // optimizer steps done
  int64_t microbatches = 0;    // forward/backward passes done: the position in the data
  int64_t trained_tokens = 0;  // supervised
  int64_t skipped_steps = 0;   // of those, the ones without a gradient
  std::optional<double> first_train_loss, first_eval_loss, last_eval_loss;
  double window_loss = 0;                 // sum over the steps since the last scheduled checkpoint …
  double window_count = 0;                // … of so much weight of targets, or so many rows
  double best_metric = 0;                 // of the checkpoint `best_step`
  int64_t best_step = -1;                 // -1: none yet
  std::optional<double> best_eval;        // the best validation's metric so far, saved or not
  int64_t evals_since_best = 0;           // validations since then
  std::optional<double> chosen_at_start;  // mean log-probability of the chosen answers in the first validation
  Json lambda;                            // LambdaController's state; null without one
  int64_t total_steps = 0;                // the length the run had; a resumed run may have another
  Json run;                               // what a resumed run must share (train/run_identity.h)
};

struct CheckpointView {
  const AdapterLayout& layout;
  const float* parameters;  // host memory, layout.size() numbers each
  const float *m, *v;
  const TrainState& state;
  std::string base;       // for adapter_config.json
  std::string prefix;     // of the model's modules
  const ModelText* text;  // its template and stop tokens go along
};

// Writes out/step-<step> and points out/last at it. Returns the folder. Throws Error(bad_file), leaving what was there.
std::string save_checkpoint(const std::string& out, const CheckpointView& view);
// Points out/best at the checkpoint of a step, atomically. Nothing where there is no such checkpoint.
void point_best(const std::string& out, int64_t step);

struct LoadedCheckpoint {
  std::string folder;
  TrainState state;
};

// The newest complete checkpoint, or nothing. A folder without state.json (written last) does not count.
std::optional<LoadedCheckpoint> find_checkpoint(const std::string& out);
// Fills the three buffers. Throws Error(bad_file) when the checkpoint is for another adapter layout.
void load_checkpoint(const LoadedCheckpoint& checkpoint, const AdapterLayout& layout, const ModelConfig& config,
                     float* parameters, float* m, float* v);

// Throws Error(bad_config) where `last` or `best` is there and no link, which a save could not replace.
void check_links(const std::string& out);

// What there is where find_checkpoint found nothing, for a message.
std::string instead_of_checkpoints(const std::string& out);

// Removes all but the newest `keep` checkpoints, never best or last. keep 0 removes nothing. A folder is renamed away before it is
// emptied, so that what a kill leaves is never taken for a checkpoint.
void prune_checkpoints(const std::string& out, int64_t keep);

// What a killed run left: half-written and half-removed folders go, and last and best point at what the newest checkpoint says.
void clean_after_kill(const std::string& out);

// Bytes that one checkpoint takes on disk.
int64_t checkpoint_bytes(const AdapterLayout& layout);

}  // namespace sluice
