// sluice eval: scores of a model, with or without an adapter.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "cli/command.h"
#include "core/device.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "eval/chunk_task.h"
#include "infer/adapter_set.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "train/plan.h"
#include "train/streamed_step.h"

namespace sluice {

namespace {

struct Options {
  std::string model, adapter, data, out, chat_template, chat_template_args, precision = "bf16", device = "cpu";
  int64_t max_tokens = 256, batch_size = 8, limit = 0, max_seq_length = 1 << 20;
  int threads = 0;
  bool full = false;
};

// What both scores begin with.
struct Loaded {
  explicit Loaded(const Options& o)
      : model(load_model(o.model)),
        text(load_model_text(*model->source)),
        pool(o.threads > 0 ? o.threads : ThreadPool::default_threads()),
        adapters(pool, *model) {
    model->device = parse_device(o.device);
    model->upload();
    if (!o.adapter.empty()) {
      tell(adapters.mount("adapter", o.adapter));
      text.use_template_of(o.adapter);
    }
    if (!o.chat_template.empty()) text.use_template(o.chat_template);
    text.use_arguments(o.chat_template_args);
  }
  std::shared_ptr<const Adapter> adapter() const { return adapters.get(adapters.names().empty() ? "" : "adapter"); }

  std::unique_ptr<Model> model;
  ModelText text;
  ThreadPool pool;
  AdapterSet adapters;
};

void eval_chunk(const Options& o) {
  Loaded loaded(o);
  const ChunkTask task(*loaded.model, loaded.text, loaded.pool,
                       {.data = o.data,
                        .max_new_tokens = o.max_tokens,
                        .batch_size = o.batch_size,
                        .limit = o.limit,
                        .dtype = o.precision == "fp32" ? DType::f32 : DType::bf16});
  const auto start = std::chrono::steady_clock::now();
  const ChunkAnswers answers = task.run(*loaded.adapter());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const ChunkScore m = answers.score();
  fmt::print("chunk score {:.2f} of 100 over {} cases ({:.1f} s)\n", m.total(), answers.rows.size(), seconds);
  fmt::print("  json {:.2f}  schema {:.2f}  ids {:.2f}  non_empty {:.2f}  boundaries {:.2f}  labels {:.2f}\n", m.json,
             m.schema, m.ids, m.non_empty, m.boundaries, m.labels);
  if (o.out.empty()) return;
  Json rows = Json::array();
  for (const ChunkAnswers::Row& row : answers.rows)
    rows.push_back({{"score", row.score.total()}, {"answer", row.answer}, {"finished", row.finished}});
  const Json report = {{"task", "chunk"},    {"model", o.model},         {"adapter", o.adapter},
                       {"score", m.total()}, {"json", m.json},           {"schema", m.schema},
                       {"ids", m.ids},       {"non_empty", m.non_empty}, {"boundaries", m.boundaries},
                       {"labels", m.labels}, {"seconds", seconds},       {"cases", rows}};
  atomic_write_file(o.out, report.dump(1) + "\n");
}

void eval_loss(const Options& o) {
  Loaded loaded(o);
  const Dataset data = read_dataset(
      o.data, loaded.text,
      {.max_seq_length = o.max_seq_length, .train_on = o.full ? TrainOn::everything : TrainOn::all_answers});
  fmt::print("{}\n", data.report.summary());
  std::vector<int64_t> lengths;
  for (const Sample& sample : data.samples) lengths.push_back(static_cast<int64_t>(sample.ids.size()));
  tell(beyond_positions(lengths, loaded.model->config.max_position_embeddings));
  Schedule schedule = Schedule::uniform(loaded.model->config.num_layers, 1, Level::input);
  std::vector<float> hits;
  const StepSettings settings{
      .schedule = schedule, .dtype = o.precision == "fp32" ? DType::f32 : DType::bf16, .hits = &hits};
  const auto logps = [&](Arena& arena, const Batch& batch) {
    Context ctx{.arena = arena, .pool = loaded.pool, .device = loaded.model->device};
    return forward_logps(ctx, *loaded.model, *loaded.adapter(),
                         {.ids = batch.ids, .spans = batch.spans, .rows = batch.rows, .targets = batch.targets},
                         settings);
  };
  Arena counting = Arena::counting(loaded.model->device);
  for (const Sample& sample : data.samples) logps(counting, pack({&sample}));
  Arena arena = Arena::allocate(loaded.model->device, counting.peak());
  double sum = 0, weight = 0;
  int64_t tokens = 0, right = 0;
  for (const Sample& sample : data.samples) {
    const Batch batch = pack({&sample});
    const std::vector<float> values = logps(arena, batch);
    for (size_t m = 0; m < values.size(); ++m)
      sum -= static_cast<double>(batch.weights[m]) * static_cast<double>(values[m]);
    weight += batch.total_weight();
    tokens += batch.num_targets();
    for (float hit : hits) right += hit > 0 ? 1 : 0;
  }
  const double loss = sum / weight;
  const double accuracy = static_cast<double>(right) / static_cast<double>(tokens);
  fmt::print("loss {:.4f}  perplexity {:.4f}  token accuracy {:.4f}  over {} tokens of {} rows\n", loss, std::exp(loss),
             accuracy, tokens, data.samples.size());
  if (!o.out.empty()) {
    atomic_write_file(o.out, Json({{"task", "loss"},
                                   {"model", o.model},
                                   {"adapter", o.adapter},
                                   {"loss", loss},
                                   {"perplexity", std::exp(loss)},
                                   {"mean_token_accuracy", accuracy},
                                   {"tokens", tokens}})
                                     .dump(1) +
                                 "\n");
  }
}

// Two results of the same task side by side.
void compare(const std::string& before_path, const std::string& after_path) {
  const Json before = read_json_file(before_path), after = read_json_file(after_path);
  check(before.is_object() && after.is_object() && before.contains("task") && after.contains("task") &&
            before["task"] == after["task"],
        ErrorCode::bad_config,
        fmt::format("{} and {} are not results of one task; make both with `sluice eval … --out`", before_path,
                    after_path));
  fmt::print("{:<14} {:>10} {:>10} {:>10}\n", "", "before", "after", "change");
  for (const auto& [name, value] : before.items()) {
    if (!value.is_number() || !after.contains(name) || !after[name].is_number() || name == "seconds") continue;
    const double b = value.get<double>(), a = after[name].get<double>();
    fmt::print("{:<14} {:>10.2f} {:>10.2f} {:>+10.2f}\n", name, b, a, a - b);
  }
}

void add_common(CLI::App& command, Options& o) {
  command.add_option("-m,--model", o.model, "base model: a folder (Hugging Face or MLX) or a .gguf file")->required();
  command.add_option("--adapter,--adapter-path", o.adapter, "folder of a PEFT or mlx-lm adapter");
  command.add_option("--data", o.data, "the data file")->required();
  command.add_option("--chat-template", o.chat_template,
                     "file with a Jinja chat template; default: the adapter's, else the model's");
  command.add_option(
      "--chat-template-args", o.chat_template_args,
      "what the chat template is told, a JSON object: {\"enable_thinking\": false}; goes before the adapter's");
  command.add_option("-o,--out", o.out, "also write the result as JSON");
  command.add_option("--precision", o.precision, "bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  add_device_option(command, o.device);
  command.add_option("--threads", o.threads, "0: as many as affinity and a container's quota leave")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "eval", "Score a model: eval chunk (the example's task), eval loss (loss and perplexity of rows)");
  command->require_subcommand(1);
  auto o = std::make_shared<Options>();
  CLI::App* chunk = command->add_subcommand("chunk", "Chunk segmentation of conversations, 0 to 100 (examples/chunk)");
  add_common(*chunk, *o);
  chunk->add_option("-n,--max-tokens", o->max_tokens, "longest answer in tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  chunk->add_option("-b,--batch-size", o->batch_size, "cases decoded at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  chunk->add_option("--limit", o->limit, "only the first n cases; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  chunk->callback([o] { eval_chunk(*o); });
  CLI::App* loss =
      command->add_subcommand("loss", "Loss per supervised token, perplexity and token accuracy of a file of rows");
  add_common(*loss, *o);
  loss->add_option("--max-seq-length", o->max_seq_length, "longer rows are dropped and counted")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  loss->add_flag("--full", o->full, "every token, not only the assistant's");
  loss->callback([o] { eval_loss(*o); });
  CLI::App* both = command->add_subcommand("compare", "Two results written with --out, side by side");
  auto paths = std::make_shared<std::pair<std::string, std::string>>();
  both->add_option("before", paths->first, "result before")->required();
  both->add_option("after", paths->second, "result after")->required();
  both->callback([paths] { compare(paths->first, paths->second); });
}

}  // namespace sluice
