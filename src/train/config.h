// The settings of a training run: one line each in the table of settings.cpp (name, where it lives, range, help). Flags, YAML, the resolved copy
// in the output folder, checkpoints and docs/settings.md all come from that table.
//
//   TrainConfig config = read_config("config.yaml", {{"iters", "200"}});   // flags override the file
//   for (const std::string& problem : validate(config)) …
//
// Names are mlx-lm's where it has them; names of TRL, PEFT, Axolotl and LLaMA-Factory for the same idea are accepted as aliases.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"

namespace sluice {

struct TrainConfig {
  // what
  std::string model, data, adapter_path = "adapters", objective = "sft", chat_template, chat_template_args;
  // data
  int64_t max_seq_length = 2048;
  std::string truncate = "false", train_on = "all";
  std::string mask_prompt = "auto";
  bool shuffle = true, allow_mixed = false, packing = false;
  double valid_fraction = 0;
  // keys of the data's rows, where they are called otherwise
  std::string column_prompt, column_completion, column_messages, column_text, column_chosen, column_rejected;
  std::string column_label, column_instruction, column_input, column_output, column_system, column_history;
  std::string column_tools, column_role, column_content;
  int64_t batch_size = 1, grad_accumulation_steps = 1;
  // length of the run: one of the three
  int64_t iters = 0, max_steps = 0;
  double num_epochs = 0, max_hours = 0;
  // preference objectives
  double beta = 0, label_smoothing = 0, orpo_lambda = 0.1, orpo_lambda_max = 1, simpo_gamma = 0.5;
  double desirable_weight = 1, undesirable_weight = 1;
  int64_t orpo_lambda_patience = 2;
  std::string loss_type = "sigmoid", sft_scope = "response", orpo_lambda_mode = "static", reference_adapter;
  bool reference_free = false;
  // optimizer
  double learning_rate = 1e-4;
  std::string lr_schedule = "cosine_decay";
  int64_t warmup = 0;
  double warmup_ratio = 0, warmup_init = 0, lr_end = 0;
  double weight_decay = 0.01, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8, max_grad_norm = 1.0;
  // adapter
  int64_t rank = 8;
  double scale = 2, alpha = 0, dropout = 0;
  std::vector<std::string> keys, rank_pattern, alpha_pattern;
  std::string rank_policy = "uniform", fine_tune_type = "lora", resume_adapter_file;
  int64_t num_layers = -1;
  bool rs_lora = false;
  double lora_plus_ratio = 1;
  // reports and files
  int64_t steps_per_report = 10, steps_per_eval = 200, val_batches = -1, save_every = 100, save_total_limit = 0;
  std::string metric_for_best_model, greater_is_better = "auto";
  int64_t early_stopping_patience = 0;
  std::string eval_task = "none", eval_task_data;
  int64_t eval_task_max_tokens = 256;
  bool resume = false;
  int64_t seed = 0;
  // machine
  std::string precision = "bf16", device = "cpu", memory = "auto", host_memory = "auto";
  int64_t threads = 0;
  int64_t segment_size = 0, tile = 0, head_rows = 0;
  std::string offload = "auto";
  std::string level = "auto", head = "auto";
};

using SettingField = std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*,
                                  bool TrainConfig::*, std::vector<std::string> TrainConfig::*>;

struct Setting {
  std::string name;  // as in YAML, nested keys with a dot: "lora_parameters.rank"
  SettingField field;
  std::string help;                   // one line; the unit where there is one
  std::vector<std::string> aliases;   // other tools' names
  std::vector<std::string> choices;   // for strings: what it may be; empty: anything
  double low = -1e300, high = 1e300;  // for numbers
};

const std::vector<Setting>& train_settings();
const Setting* find_setting(const std::string& name, bool* by_alias = nullptr);  // null: unknown

// Reads YAML (may be empty) and then flags, pairs of name and text. What neither gives has the default of the objective
// (objective_defaults in objective_config.h), else that of TrainConfig. Unknown names throw Error(bad_config) with the nearest known
// one; so do values of another type, and a setting that the file or the flags give twice, under whatever names. `notes` receives one line for each alias used and each trap of another tool's meaning.
TrainConfig read_config(const std::string& yaml_path, const std::vector<std::pair<std::string, std::string>>& flags,
                        std::vector<std::string>* notes = nullptr);

// Everything that is wrong with the values, before any file but the config is read.
std::vector<std::string> validate(const TrainConfig& config);

// The effective settings as YAML, readable by read_config. Of alpha and scale the one that counts.
std::string to_yaml(const TrainConfig& config);
Json to_json(const TrainConfig& config);

// "600MiB", "10GiB", "1.5G", "123456" -> bytes. Throws Error(bad_config).
int64_t parse_bytes(const std::string& text, const std::string& setting);

// docs/settings.md: the table as Markdown.
std::string settings_markdown();

}  // namespace sluice
