// sluice inspect: what is in a model or an adapter.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "cli/command.h"
#include "core/bytes.h"
#include "data/model_text.h"
#include "io/json_file.h"
#include "infer/kv_cache.h"
#include "model/adapter_file.h"
#include "model/rank_policy.h"
#include "model/registry.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

void print_row(std::string_view what, const std::string& value) { fmt::print("{:<16} {}\n", what, value); }

std::string head_dims(const ModelConfig& m) {
  std::map<std::string, int64_t> kinds;
  for (const LayerConfig& l : m.layers) {
    ++kinds[fmt::format("{} query and {} key/value heads of {}{}", l.num_heads, l.num_kv_heads, l.head_dim,
                        l.window > 0 ? fmt::format(", window {}", l.window) : std::string())];
  }
  std::string text;
  for (const auto& [kind, count] : kinds) text += fmt::format("{}{} layers: {}", text.empty() ? "" : "; ", count, kind);
  return text;
}

void inspect_model(const std::string& path, bool tensors) {
  const std::unique_ptr<WeightSource> source = open_model(path, {.allow_header_only = true});
  const ModelRecipe recipe = read_recipe(*source);
  const ModelConfig& m = recipe.config;
  std::map<std::string, std::pair<int64_t, int64_t>> formats;  // tensors, bytes
  int64_t numbers = 0;
  for (const std::string& name : source->names()) {
    const std::optional<Weight> w = source->find(name);
    std::string format(to_string(w->format));
    if (w->format == WeightFormat::affine) format += fmt::format(" {} bit, groups of {}", w->bits, w->group_size);
    ++formats[format].first;
    formats[format].second += w->size_bytes();
    numbers += w->rows * w->cols;
  }
  print_row("model", path);
  print_row("architecture", m.model_type);
  print_row("layers", fmt::format("{}", m.num_layers));
  print_row("hidden size", fmt::format("{}", m.hidden_size));
  print_row("MLP width", fmt::format("{}", m.layers.front().intermediate_size));
  print_row("attention", head_dims(m));
  print_row("vocabulary", fmt::format("{}{}", m.vocab_size, m.tied_head ? ", head tied to the embedding" : ""));
  print_row("context",
            m.max_position_embeddings > 0 ? fmt::format("{} tokens", m.max_position_embeddings) : "not stated");
  print_row("parameters",
            fmt::format("{:.1f} M in {} tensors", static_cast<double>(numbers) / 1e6, source->names().size()));
  for (const auto& [format, count] : formats)
    print_row("stored as", fmt::format("{}: {} tensors, {}", format, count.first, format_bytes(count.second)));
  try {
    const ModelText text = load_model_text(*source);
    print_row("tokenizer", fmt::format("{} tokens", text.tokenizer.vocab_size()));
    print_row("chat template", text.chat                       ? text.chat->sources()[0].where
                               : text.template_problem.empty() ? "none"
                                                               : text.template_problem);
    std::string stops;
    for (int32_t id : text.stop_ids)
      stops += fmt::format("{}{} {}", stops.empty() ? "" : ", ", id, text.tokenizer.token_text(id));
    print_row("stop tokens", stops);
    for (const std::string& note : text.notes) print_row("note", note);
    if (!text.end_problem.empty()) print_row("note", text.end_problem);
  } catch (const Error& e) {
    print_row("text", e.what());
  }
  if (!tensors) return;
  for (const std::string& name : source->names()) {
    const Weight w = source->need(name);
    fmt::print("  {:<56} [{}, {}] {}\n", name, w.rows, w.cols, to_string(w.format));
  }
}

void inspect_adapter(const std::string& path, const std::string& base, bool tensors) {
  if (base.empty()) {
    const Json config = read_json_file((fs::path(path) / adapter_config_name).string());
    fmt::print("{}\n", config.dump(2));
    const std::string file =
        (fs::path(path) / (fs::exists(fs::path(path) / peft_weights_name) ? peft_weights_name : mlx_weights_name))
            .string();
    const SafetensorsFile weights(file);
    int64_t numbers = 0;
    for (const StoredTensor& t : weights.tensors()) {
      numbers += t.numel();
      if (tensors) fmt::print("  {:<80} {} [{}]\n", t.name, t.dtype, fmt::join(t.shape, ", "));
    }
    print_row("tensors",
              fmt::format("{} with {} numbers; --model checks them against a base", weights.tensors().size(), numbers));
    check_adapter_config(path);
    return;
  }
  const std::unique_ptr<WeightSource> source = open_model(base, {.allow_header_only = true});
  const LoadedAdapter adapter = load_adapter(path, read_recipe(*source).config);
  tell(adapter.note);
  print_row("adapter", path);
  print_row("format", adapter.format == AdapterFormat::peft  ? "PEFT"
                      : adapter.format == AdapterFormat::mlx ? "mlx-lm"
                                                             : "llama.cpp");
  print_row("base", adapter.base.empty() ? "not stated" : adapter.base);
  print_row("modules", fmt::format("{}", adapter.layout.entries().size()));
  print_row("parameters", fmt::format("{}", adapter.layout.num_parameters()));
  fmt::print("{}", rank_table(adapter.layout));
  for (const AdapterLayout::Entry& e : adapter.layout.entries()) {
    if (!tensors) break;
    const auto norm = [&](int64_t begin, int64_t count) {
      double sum = 0;
      for (int64_t i = 0; i < count; ++i)
        sum += std::pow(static_cast<double>(adapter.flat[static_cast<size_t>(begin + i)]), 2);
      return std::sqrt(sum);
    };
    fmt::print("  {:<40} rank {:>3}  scale {:.4g}  |A| {:.4g}  |B| {:.4g}\n", module_name(e.layer, e.module), e.rank,
               e.scale, norm(e.a_offset, e.rank * e.in), norm(e.b_offset, e.out * e.rank));
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "Show what is in a model or an adapter");
  struct Options {
    std::string path, model;
    bool tensors = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("path", options->path, "a model (folder or .gguf) or an adapter (with --model also one in GGUF)")
      ->required();
  command->add_option("--model", options->model, "base to check an adapter against");
  command->add_flag("--tensors", options->tensors, "list every tensor");
  command->callback([options] {
    if (!options->model.empty() || fs::exists(fs::path(options->path) / adapter_config_name))
      inspect_adapter(options->path, options->model, options->tensors);
    else inspect_model(options->path, options->tensors);
  });
}

}  // namespace sluice
