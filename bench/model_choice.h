// What a benchmark runs.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "support/model_shapes.h"

namespace sluice::bench {

// What a benchmark runs: the model of a file or folder, or with `shape` one without data, for a CUDA device.
struct ModelChoice {
  std::string model, shape, format = "bf16", device = "cpu";
};
inline void add_options(CLI::App& app, ModelChoice& choice) {
  app.add_option("--model", choice.model, "GGUF file or model folder");
  app.add_option("--shape", choice.shape, "a model of this shape with random weights, instead of --model")
      ->check(CLI::IsMember(model_shapes));
  app.add_option("--format", choice.format, "of that model's weights")->check(CLI::IsMember({"bf16", "affine4"}));
  app.add_option("--device", choice.device, "cpu, cuda or cuda:1");
}

// Its weights are not on the device yet: upload() follows.
inline std::unique_ptr<Model> open(const ModelChoice& choice) {
  auto model = choice.shape.empty() ? load_model(choice.model) : model_of_shape(choice.shape, choice.format);
  model->device = parse_device(choice.device);
  check(choice.shape.empty() || model->device.type == DeviceType::cuda, ErrorCode::bad_config,
        "--shape has no weights but those a CUDA device makes; give --device cuda, or --model");
  return model;
}
inline void upload(Model& model, const ModelChoice& choice) {
  if (choice.shape.empty()) model.upload();
  else model.upload_random(1);
}

}  // namespace sluice::bench
