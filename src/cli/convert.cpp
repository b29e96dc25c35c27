// sluice convert: an adapter from one format into another.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "model/adapter_file.h"
#include "model/registry.h"

namespace sluice {

namespace {

struct Options {
  std::string adapter, model, to, output;
};

void convert(const Options& o) {
  const std::unique_ptr<WeightSource> source = open_model(o.model, {.allow_header_only = true});
  const ModelRecipe recipe = read_recipe(*source);
  const LoadedAdapter adapter = load_adapter(o.adapter, recipe.config);
  tell(adapter.note);
  if (o.to == "peft") save_peft_adapter(o.output, adapter.layout, adapter.flat.data(), o.model, recipe.prefix);
  if (o.to == "mlx")
    save_mlx_adapter(o.output, adapter.layout, adapter.flat.data(), recipe.config.num_layers, recipe.prefix);
  if (o.to == "gguf") save_gguf_adapter(o.output, adapter.layout, adapter.flat.data(), recipe.config);
  fmt::print("{}: {} modules, {} numbers\n", o.output, adapter.layout.entries().size(),
             adapter.layout.num_parameters());
}

}  // namespace

void add_convert(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("convert", "Write an adapter in the format of PEFT, mlx-lm or llama.cpp");
  command->add_option("adapter", o->adapter, "a folder of PEFT or mlx-lm, its .safetensors file, or a .gguf adapter")
      ->required();
  command->add_option("--model", o->model, "its base: a folder or .gguf file")->required();
  command->add_option("--to", o->to, "peft, mlx or gguf")->required()->check(CLI::IsMember({"peft", "mlx", "gguf"}));
  command->add_option("--output", o->output, "a folder; for gguf a file")->required();
  command->callback([o] { convert(*o); });
}

}  // namespace sluice
