#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/bytes.h"
#include "core/device.h"
#include "core/system_memory.h"
#include "data/order.h"
#include "data/row_source.h"
#include "io/atomic_file.h"
#include "ops/adamw/adamw.h"
#include "ops/common/copy.h"
#include "train/adapter_setup.h"
#include "train/adapter_update.h"
#include "train/checkpoint.h"
#include "train/lambda_controller.h"
#include "train/largest_shapes.h"
#include "train/lr_schedule.h"
#include "train/objective_config.h"
#include "train/run_identity.h"
#include "train/run_state.h"
#include "train/verify_adapter.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

// What the process takes in its first steps besides the arenas, after planning has generated the kernels: oneDNN's memory objects, buffers
// of files, stacks. Measured on SmolLM2-135M (docs/memory.md).
constexpr int64_t first_steps_bytes = 8 << 20;

// Kernels that are loaded after planning.
constexpr int64_t device_first_steps_bytes = int64_t{64} << 20;

// CUDA's context on an H200, for a plan where no device is.
constexpr int64_t context_bytes = int64_t{522} << 20;

// What is held on the device now: by CUDA's context, and by other processes.
int64_t held_on(Device device) {
  if (!is_here(device)) return context_bytes + device_first_steps_bytes;
  const DeviceMemory memory = memory_of(device);
  return memory.total_bytes - memory.free_bytes + device_first_steps_bytes;
}

// A run that starts from an adapter is compared with that, not with the base, unless it asks for the base.
std::string reference_folder(const TrainConfig& config) {
  if (config.reference_adapter.empty()) return config.resume_adapter_file;
  return config.reference_adapter == "base" ? "" : config.reference_adapter;
}

Columns columns_of(const TrainConfig& config) {
  Columns columns;
  constexpr std::string_view prefix = "columns.";
  for (const Setting& s : train_settings()) {
    const auto* field = std::get_if<std::string TrainConfig::*>(&s.field);
    if (s.name.starts_with(prefix) && !(config.**field).empty())
      columns.names.emplace_back(s.name.substr(prefix.size()), config.**field);
  }
  return columns;
}

DatasetOptions dataset_options(const TrainConfig& config) {
  const TrainOn answers = config.train_on == "last" ? TrainOn::last_answer : TrainOn::all_answers;
  return {.max_seq_length = config.max_seq_length,
          .truncate = truncate_of(config.truncate),
          .train_on = config.mask_prompt == "false" ? TrainOn::everything : answers,
          .needs_answers = config.mask_prompt == "true",
          .allow_mixed = config.allow_mixed,
          .columns = columns_of(config),
          .split = {.held_out_fraction = config.valid_fraction, .seed = static_cast<uint64_t>(config.seed)}};
}

// Of a folder without it the usual name, which is then missed by the reader.
std::string train_file(const std::string& data) {
  if (!fs::is_directory(data)) return data;
  const std::string found = file_of_part(data, "train");
  return found.empty() ? (fs::path(data) / "train.jsonl").string() : found;
}

}  // namespace

Run::Run(const TrainConfig& config, Progress& progress, const TaskMaker& make_task, const StopRequest* stop)
    : config_(config), progress_(progress), stop_(stop), objective_(objective_of(config)) {
  const std::vector<std::string> problems = sluice::validate(config);
  check(problems.empty(), ErrorCode::bad_config, fmt::format("{}", fmt::join(problems, "\nsluice: ")));
  pool_ = std::make_unique<ThreadPool>(config.threads > 0 ? static_cast<int>(config.threads)
                                                          : ThreadPool::default_threads());
  progress_.phase("opening " + config.model);
  model_ = load_model(config.model);
  model_->device = parse_device(config.device);
  text_ = std::make_unique<ModelText>(load_model_text(*model_->source));
  if (!config.chat_template.empty()) text_->use_template(config.chat_template);
  for (const std::string& line : text_->notes) note(line);
  text_->use_arguments(config.chat_template_args);
  leave_before_steps();
  load_data();
  leave_before_steps();
  layout_ = adapter_layout(config_, *model_);
  if (config_.rank_policy == "by_kl") note(without_figures(*model_, layout_));
  if (objective_.needs_reference()) policy_.emplace(*model_, reference_folder(config_));
  if (config_.eval_task != "none") {
    check(static_cast<bool>(make_task), ErrorCode::bad_config,
          "eval_task is given to a program that has no tasks; use sluice train, or give train() a maker of it");
    task_ = make_task(config_, *model_, *text_, *pool_);
  }
  find_lengths();
  plan_memory();
}

Run::~Run() = default;

void Run::note(const std::string& text) {
  if (!text.empty()) progress_.note(text);
}

void Run::load_data() {
  progress_.phase("reading " + config_.data);
  DatasetOptions options = dataset_options(config_);
  const std::string train = train_file(config_.data);
  DataReport report;
  train_rows_ = RunRows::read(train, *text_, options, objective_, &report);
  progress_.note(report.summary());
  data_reports_ = {{"train", report.json()}};
  const std::string valid = fs::is_directory(config_.data) ? file_of_part(config_.data, "valid") : "";
  const bool has_valid = !valid.empty(), splits = config_.valid_fraction > 0;
  check(!has_valid || !splits, ErrorCode::bad_config,
        fmt::format("valid_fraction is given, and {} is there; leave out one of them", valid));
  if (has_valid || splits) {
    options.split.held_out = splits;
    valid_rows_ = RunRows::read(splits ? train : valid, *text_, options, objective_, &report);
    data_reports_["valid"] = report.json();
    if (splits) progress_.note("held out for validation: " + report.summary());
  }
  check(!train_rows_.empty(), ErrorCode::bad_file, fmt::format("{}: no row can be trained on", config_.data));
  if (train_rows_.size() < config_.batch_size && !config_.packing)
    progress_.note(fmt::format("batch_size is {} and there are {} rows: a batch holds them all", config_.batch_size,
                               train_rows_.size()));
  check(!valid_rows_.empty() || !needs_validation(config_), ErrorCode::bad_config,
        fmt::format("{}: there is no file valid and no valid_fraction, which metric_for_best_model, "
                    "early_stopping_patience, eval_task and "
                    "orpo_lambda_mode: adaptive need",
                    config_.data));
  train_rows_.check_vocabulary(model_->config.vocab_size);
  valid_rows_.check_vocabulary(model_->config.vocab_size);
  std::vector<int64_t> lengths = train_rows_.lengths();
  for (int64_t length : valid_rows_.lengths()) lengths.push_back(length);
  note(beyond_positions(lengths, model_->config.max_position_embeddings));
}

void set_machine(PlanRequest& request, const TrainConfig& config, int num_threads) {
  request.dtype = dtype_of_run(config);
  request.num_threads = num_threads;
  request.budget_bytes = config.memory == "auto" ? 0 : parse_bytes(config.memory, "memory");
  request.device = parse_device(config.device);
  if (request.device.type == DeviceType::cuda)
    request.process_bytes = [device = request.device] { return held_on(device); };
  else request.process_bytes = [] { return process_memory().anonymous_bytes + first_steps_bytes; };
  request.host_budget_bytes = config.host_memory == "auto" ? 0 : parse_bytes(config.host_memory, "host_memory");
  request.segment_size = config.segment_size;
  request.tile = config.tile;
  request.head_rows = config.head_rows;
  request.level = config.level == "auto" ? "" : config.level;
  request.head = config.head == "auto" ? "" : config.head;
  request.offload = config.offload == "auto" ? "" : config.offload;
}

void Run::find_lengths() {
  order_rows();
  if (config_.num_epochs > 0) total_microbatches_ = batches_->microbatches_for(config_.num_epochs);
  else if (config_.max_steps > 0) total_microbatches_ = config_.max_steps * config_.grad_accumulation_steps;
  else total_microbatches_ = config_.iters > 0 ? config_.iters : 1000;
  total_steps_ = (total_microbatches_ + config_.grad_accumulation_steps - 1) / config_.grad_accumulation_steps;
}

// Packed microbatches hold as many tokens as a batch of rows of full length would.
void Run::order_rows() {
  const auto seed = static_cast<uint64_t>(config_.seed);
  if (!config_.packing) {
    batches_.emplace(Order(seed, train_rows_.size(), config_.shuffle), config_.batch_size);
    return;
  }
  const int64_t budget = config_.batch_size * config_.max_seq_length * (objective_.kind == ObjectiveKind::sft ? 1 : 2);
  batches_.emplace(Packing(train_rows_.token_counts(), budget, seed, config_.shuffle));
  const Packing& packing = *batches_->packing();
  progress_.note(fmt::format(
      "packing: {} rows in {} microbatches of up to {} tokens, {:.1f} % full (no packing needs fewer than {})",
      packing.num_rows(), packing.num_bins(), budget, 100 * packing.fill(), packing.fewest_bins()));
  data_reports_["packing"] = {{"rows", packing.num_rows()},
                              {"microbatches", packing.num_bins()},
                              {"budget_tokens", budget},
                              {"fill", packing.fill()},
                              {"fewest_microbatches", packing.fewest_bins()}};
}

double Run::count_in(int64_t begin, int64_t end) const {
  if (objective_.kind != ObjectiveKind::sft)
    return static_cast<double>(batches_->rows_before(end) - batches_->rows_before(begin));
  double weight = 0;
  for (int64_t i = begin; i < end; ++i) weight += train_rows_.pack(rows_of(i)).tokens.total_weight();
  return weight;
}

PlanRequest Run::plan_request() const {
  PlanRequest request{.model = *model_, .layout = layout_, .train = train_shapes_, .validation = valid_shapes_};
  set_machine(request, config_, pool_->num_threads());
  if (policy_) request.reference = policy_->layout();
  const int64_t more = (policy_ ? policy_->bytes() : 0) + (task_ ? task_->bytes : 0);
  request.process_bytes = [of_process = request.process_bytes, more] { return of_process() + more; };
  return request;
}

std::vector<Plan> Run::candidates() const { return candidate_plans(plan_request()); }

void Run::plan_memory() {
  progress_.phase("planning memory");
  LargestShapes largest, forward;  // forward: what runs without a backward
  for (int64_t i = 0; i < total_microbatches_; ++i) {
    leave_before_steps();
    const std::vector<int64_t> rows = rows_of(i);
    largest.add(train_rows_.pack(rows).tokens);
    if (objective_.kind == ObjectiveKind::kto) forward.add(train_rows_.pack_mismatched(rows).tokens);
    for (int64_t row : rows) {
      if (!policy_) break;
      for (const PreferenceBatch& batch : train_rows_.reference_batches(row)) forward.add(batch.tokens);
    }
  }
  for (int64_t row = 0; row < valid_rows_.size(); ++row) {
    forward.add(valid_rows_.pack({row}).tokens);
    if (!policy_) continue;
    for (const PreferenceBatch& batch : valid_rows_.reference_batches(row)) forward.add(batch.tokens);
  }
  forward.add(pack({&train_rows_.sequence(rows_of(0).front())}));  // the check of the saved adapter
  train_shapes_ = largest.take();
  valid_shapes_ = forward.take();
  plan_ = make_plan(plan_request());
  progress_.note(plan_table(plan_));
}

void Run::fail(const std::string& what) {
  try {
    if (state_ && state_->metrics)
      state_->metrics->write({{"type", "failed"}, {"step", state_->now.step}, {"reason", what}});
  } catch (const Error&) {  // the disk is full too: what is thrown below tells more
  }
  const bool over = state_->now.step >= total_steps_ || stops_early();
  throw Error(ErrorCode::device, fmt::format("{} {}: {}; {}", over ? "after step" : "step",
                                             state_->now.step + (over ? 0 : 1), what, last_whole()));
}

void Run::start() {
  if (!plan_.fits()) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("the leanest plan needs {} and the budget is {}: {} are missing; lower max_seq_length, "
                            "batch_size or lora_parameters.rank, "
                            "or give more --memory{}",
                            format_bytes(plan_.total_bytes()), format_bytes(plan_.budget_bytes),
                            format_bytes(plan_.missing_bytes()),
                            plan_.device.type == DeviceType::cuda ? " or --host_memory" : ""));
  }
  const int64_t available = available_memory();
  check(available == 0 || plan_.pinned_bytes <= available, ErrorCode::out_of_memory,  // 0: the system does not say
        fmt::format("the plan takes {} of pinned host memory and {} are free; lower host_memory",
                    format_bytes(plan_.pinned_bytes), format_bytes(available)));
  const int64_t free_bytes = static_cast<int64_t>(std::min<uint64_t>(free_disk_bytes(config_.adapter_path), INT64_MAX));
  check(free_bytes >= 2 * checkpoint_bytes(layout_), ErrorCode::bad_file,
        fmt::format(
            "{}: {} free on the disk, one checkpoint takes {} and two must fit; free some or give another adapter_path",
            config_.adapter_path, format_bytes(free_bytes), format_bytes(checkpoint_bytes(layout_))));
  base_hash_ = base_hash(*model_);
  if (model_->device.type == DeviceType::cuda) progress_.phase("copying the base to the device");
  model_->upload();
  state_ = std::make_unique<State>(model_->device, layout_, plan_, *pool_);
  State& s = *state_;
  s.adapter = Adapter(layout_, s.p, s.norms);
  s.grads = Adapter(layout_, s.g);
  take_folder();
  s.lr = {.name = config_.lr_schedule,
          .peak = config_.learning_rate,
          .init = config_.warmup_init,
          .end = config_.lr_end,
          .warmup = warmup_steps(config_.warmup, config_.warmup_ratio, total_steps_),
          .total = total_steps_};
  if (s.lr.warmup >= total_steps_)
    progress_.note(
        fmt::format("warning: the warm-up takes {} steps and the run has {}: the learning rate ends at {:.3g} "
                    "instead of {:.3g}; lower lr_schedule.warmup",
                    s.lr.warmup, total_steps_, s.lr.at(total_steps_ - 1), s.lr.peak));
  s.lambda = LambdaController(
      {.start = objective_.orpo_lambda, .max = config_.orpo_lambda_max, .patience = config_.orpo_lambda_patience});
  for (Tensor t : {s.m, s.v, s.g}) zero(s.ctx, {.tensor = t});
  const auto start = [&] {
    note(start_adapter(s.ctx, *model_, config_, s.adapter));
    s.start_hash = s.parameter_hash();
  };
  // A run that is resumed no longer needs the adapter that it began with.
  if (config_.resume_adapter_file.empty()) start();
  const bool resumed = try_resume();
  if (!resumed && !config_.resume_adapter_file.empty()) start();
  refresh_norms(s.ctx, *model_, s.adapter);
  const fs::path out(config_.adapter_path);
  clean_after_kill(config_.adapter_path);
  find_reference();
  s.metrics = std::make_unique<MetricsFile>((out / "metrics.jsonl").string(), resumed ? s.now.step : -1);
  atomic_write_file((out / "data_report.json").string(), data_reports_.dump(2) + "\n");
  atomic_write_file((out / "config.resolved.yaml").string(), to_yaml(config_));
  atomic_write_file((out / "plan.json").string(), plan_json(plan_).dump(2) + "\n");
  progress_.phase(fmt::format("training: {} steps, {:.3f} M of {:.1f} M numbers, {} threads", total_steps_,
                              static_cast<double>(layout_.num_parameters()) / 1e6,
                              static_cast<double>(model_->num_weights()) / 1e6, pool_->num_threads()));
}

void Run::step() {
  State& s = *state_;
  const int64_t begin = s.now.microbatches;
  const int64_t end = std::min(begin + config_.grad_accumulation_steps, total_microbatches_);
  const double count = count_in(begin, end);
  zero(s.ctx, {.tensor = s.g});
  double kl = 0;
  for (int64_t i = begin; i < end && objective_.kind == ObjectiveKind::kto; ++i)
    kl += kl_sum(train_rows_, rows_of(i), reference_.train);
  kl = std::max(kl / std::max(count, 1.0), 0.0);
  for (int64_t i = begin; i < end; ++i) {
    leave_at_once();
    progress_.tick(s.now.step, total_steps_, i - begin, end - begin);
    const double loss = run_microbatch(i, count, kl);
    s.loss_sum += loss;
    s.now.window_loss += loss;
  }
  s.now.microbatches = end;
  update(count);
}

void Run::update(double count) {
  State& s = *state_;
  check(count > 0, ErrorCode::bug, "a step without supervised tokens");
  double squares[2] = {0, 0};
  sum_of_squares(s.ctx, {.g = s.g, .result = squares});
  if (squares[1] > 0 || !std::isfinite(squares[0])) {
    fail(fmt::format("{} numbers of the gradient are not finite (NaN or infinity); lower learning_rate",
                     static_cast<int64_t>(squares[1])));
  }
  s.grad_norm = std::sqrt(squares[0]);
  if (s.grad_norm > 0) apply_gradient();
  else skip_step();
  ++s.now.step;
  ++s.steps;
}

void Run::apply_gradient() {
  State& s = *state_;
  const double clip = config_.max_grad_norm > 0 ? std::min(1.0, config_.max_grad_norm / s.grad_norm) : 1.0;
  update_adapter(s.ctx, layout_,
                 {.p = s.p,
                  .m = s.m,
                  .v = s.v,
                  .g = s.g,
                  .grad_scale = static_cast<float>(clip),
                  .lr = static_cast<float>(s.lr.at(s.now.step)),
                  .beta1 = static_cast<float>(config_.adam_beta1),
                  .beta2 = static_cast<float>(config_.adam_beta2),
                  .eps = static_cast<float>(config_.adam_epsilon),
                  .weight_decay = static_cast<float>(config_.weight_decay),
                  .t = s.now.step - s.now.skipped_steps + 1},
                 config_.lora_plus_ratio);
  refresh_norms(s.ctx, *model_, s.adapter);
}

// What the system counts against the plan: the process' own memory, or the device's that is held.
int64_t Run::held_bytes() const {
  if (model_->device.type == DeviceType::cpu) return process_memory().anonymous_bytes;
  const DeviceMemory memory = memory_of(model_->device);
  return memory.total_bytes - memory.free_bytes;
}

void Run::report() {
  State& s = *state_;
  const double seconds = seconds_since(s.since);
  s.peak_bytes = std::max(s.peak_bytes, held_bytes());
  TrainReport report{
      .step = s.now.step,
      .total_steps = total_steps_,
      .epoch = static_cast<double>(batches_->rows_before(s.now.microbatches)) / static_cast<double>(train_rows_.size()),
      .loss = s.loss_sum / s.loss_count,
      .learning_rate = s.lr.at(s.now.step - 1),
      .grad_norm = s.grad_norm,
      .steps_per_second = static_cast<double>(s.steps) / seconds,
      .tokens_per_second = static_cast<double>(s.run_tokens) / seconds,
      .trained_tokens = s.now.trained_tokens,
      .peak_bytes = s.peak_bytes,
      .skipped_steps = s.now.skipped_steps,
      .accuracy = s.accuracy};
  if (!std::isfinite(report.loss)) fail("the loss is not finite; lower learning_rate");
  if (s.pairs.pairs > 0) {
    report.objective = s.pairs.json(objective_);
    if (config_.orpo_lambda_mode == "adaptive") report.objective["orpo_lambda"] = objective_.orpo_lambda;
    warn_of_displacement();
  }
  progress_.train(report);
  s.metrics->write(to_json(report));
  s.result.train_loss = report.loss;
  if (!s.now.first_train_loss) s.now.first_train_loss = report.loss;
  s.loss_sum = s.loss_count = 0;
  s.run_tokens = s.steps = 0;
  s.pairs = {};
  s.accuracy = {};
  s.since = Clock::now();
}

// What is not scheduled, by save_every or the run's end, is for resumption alone.
void Run::save(bool scheduled) {
  State& s = *state_;
  if (s.loss_count > 0) report();
  HostFloats p(s.ctx, s.p), m(s.ctx, s.m), v(s.ctx, s.v);
  if (const std::string found = find_not_finite(layout_, p.data(), m.data(), v.data()); !found.empty())
    fail(fmt::format("{} after the update; nothing was saved, lower learning_rate or raise adam_epsilon", found));
  s.metrics->sync();
  const bool best = scheduled && take_as_best();
  s.result.adapter_folder = save_checkpoint(config_.adapter_path, {.layout = layout_,
                                                                   .parameters = p.data(),
                                                                   .m = m.data(),
                                                                   .v = v.data(),
                                                                   .state = s.now,
                                                                   .base = config_.model,
                                                                   .prefix = model_->prefix,
                                                                   .text = text_.get()});
  if (best) point_best(config_.adapter_path, s.now.best_step);
  prune_checkpoints(config_.adapter_path, config_.save_total_limit);
  progress_.saved(s.now.step, s.result.adapter_folder);
}

void Run::finish() {
  State& s = *state_;
  check_that_it_learned();
  if (const std::optional<LoadedCheckpoint> last = find_checkpoint(config_.adapter_path))
    s.result.adapter_folder = last->folder;
  verify_saved_adapter(s.ctx, *model_, s.adapter, s.result.adapter_folder, s.g,
                       train_rows_.sequence(rows_of(0).front()),
                       {.schedule = plan_.schedule, .dtype = dtype_of_run(config_)});
  const fs::path out(config_.adapter_path);
  write_plot((out / "metrics.jsonl").string(), (out / "training.svg").string());
  s.result.steps = s.now.step;
  s.result.skipped_steps = s.now.skipped_steps;
  s.result.first_eval_loss = s.now.first_eval_loss.value_or(0);
  s.result.last_eval_loss = s.now.last_eval_loss.value_or(0);
  s.result.best_eval_loss = s.now.best_metric;
  s.result.arena_planned = s.arena.capacity();
  s.result.arena_used = s.arena.peak();
  const bool cuda = model_->device.type == DeviceType::cuda;
  progress_.note(fmt::format(
      "step arena: {} planned, {} used; {}: {} planned, {} at its highest report{}", format_bytes(plan_.step_bytes),
      format_bytes(s.arena.peak()), cuda ? "device" : "process", format_bytes(plan_.total_bytes()),
      format_bytes(std::max(s.peak_bytes, held_bytes())),
      cuda ? "" : fmt::format(", and {} of the mapped base resident", format_bytes(process_memory().mapped_bytes))));
  warn_of_a_worse_end();
  progress_.note(
      fmt::format("done: adapter in {}, picture in {}", s.result.adapter_folder, (out / "training.svg").string()));
}

RunResult Run::train() {
  start();
  State& s = *state_;
  if (s.now.step == 0) validate();
  s.since = Clock::now();
  while (s.now.step < total_steps_ && !stops_early()) {
    step();
    bool last = s.now.step == total_steps_;
    if (last || s.now.step == 1 || s.now.step % config_.steps_per_report == 0) report();
    if (last || (config_.steps_per_eval > 0 && s.now.step % config_.steps_per_eval == 0)) validate();
    if (stops_early()) last = true, note_early_stop();
    const std::string why = why_stop();
    const bool scheduled = last || (config_.save_every > 0 && s.now.step % config_.save_every == 0);
    if (scheduled || !why.empty()) {
      save(scheduled);
      s.since = Clock::now();
    }
    if (!why.empty() && !last) {
      throw Error(ErrorCode::cancelled, fmt::format("stopped after step {} of {} ({}); {}, go on with --resume",
                                                    s.now.step, total_steps_, why, last_whole()));
    }
  }
  finish();
  return s.result;
}

RunResult train(const TrainConfig& config, Progress& progress, const TaskMaker& make_task, const StopRequest* stop) {
  if (validate(config).empty()) {  // else Run tells
    const Device device = parse_device(config.device);
    if (!is_here(device)) memory_of(device);  // says why there is none, before anything is read
    RunLock::refuse_if_held(config.adapter_path);
    checkpoint_for(config);
  }
  return Run(config, progress, make_task, stop).train();
}

}  // namespace sluice
