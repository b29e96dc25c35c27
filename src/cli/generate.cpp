// sluice generate: a prompt, an answer, on the terminal as it comes.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <iterator>

#include "cli/command.h"
#include "core/device.h"
#include "data/model_text.h"
#include "infer/adapter_set.h"
#include "infer/generate.h"

namespace sluice {

namespace {

volatile std::sig_atomic_t interrupted = 0;

struct Options {
  std::string model, adapter, prompt, prompt_file, system, chat_template, chat_template_args, precision = "bf16",
                                                                                              device = "cpu";
  bool raw = false, quiet = false, logits = false;
  std::vector<int32_t> ids;
  int64_t max_tokens = 256, max_kv_size = 0;
  int threads = 0;
  SamplerOptions sampler;
};

std::string read_prompt(const Options& o) {
  if (o.prompt_file.empty()) return o.prompt;
  if (o.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  std::ifstream file(o.prompt_file, std::ios::binary);
  check(file.good(), ErrorCode::bad_file, o.prompt_file + ": cannot be read; give a text file or - for standard input");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<int32_t> prompt_ids(const Options& o, const ModelText& text) {
  if (!o.ids.empty()) return o.ids;
  const std::string prompt = read_prompt(o);
  check(!prompt.empty(), ErrorCode::bad_config, "there is no prompt; give --prompt, --prompt-file or --ids");
  if (o.raw) return text.tokenizer.encode(prompt, {.add_special = true}).ids;
  std::vector<ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system});
  messages.push_back({"user", prompt});
  const RenderedChat chat = text.need_chat().render({.messages = to_json(messages), .add_generation_prompt = true});
  return text.tokenizer.encode(chat.text, {.add_special = true, .parse_special = true}).ids;
}

void generate(const Options& o) {
  const std::unique_ptr<Model> model = load_model(o.model);
  model->device = parse_device(o.device);
  model->upload();
  ModelText text = load_model_text(*model->source);
  for (const std::string& note : text.notes) fmt::print(stderr, "note: {}\n", note);
  ThreadPool pool(o.threads > 0 ? o.threads : ThreadPool::default_threads());
  AdapterSet adapters(pool, *model);
  if (!o.adapter.empty()) {
    tell(adapters.mount("adapter", o.adapter));
    text.use_template_of(o.adapter);
  }
  if (!o.chat_template.empty()) text.use_template(o.chat_template);
  text.use_arguments(o.chat_template_args);
  GenerateRequest request{
      .prompt = prompt_ids(o, text), .stop_ids = text.stop_ids, .max_new_tokens = o.max_tokens, .sampler = o.sampler};
  for (int32_t id : request.prompt) {
    check(id >= 0 && id < model->config.vocab_size, ErrorCode::bad_config,
          fmt::format("token id {} is outside the vocabulary of {}", id, model->config.vocab_size));
  }
  const int64_t room =
      o.max_kv_size > 0 ? o.max_kv_size : static_cast<int64_t>(request.prompt.size()) + o.max_tokens + 1;
  const auto adapter = adapters.get(o.adapter.empty() ? "" : "adapter");
  GeneratorOptions options{.max_sequences = 1,
                           .max_tokens = room,
                           .dtype = o.precision == "fp32" ? DType::f32 : DType::bf16,
                           .prompts = {static_cast<int64_t>(request.prompt.size())}};
  if (!adapter->empty()) options.adapters.push_back(adapter->layout());
  Generator generator(pool, *model, options);
  StreamDecoder decoder(text.tokenizer);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const GenerateResult result = generator.generate(request, *adapter, [&](size_t, int32_t id) {
    fmt::print("{}", decoder.push(id));
    std::fflush(stdout);
    return interrupted == 0 && std::ferror(stdout) == 0;  // nobody reads on: a closed pipe, a full disk
  });
  fmt::print("{}\n", decoder.finish());
  if (o.quiet) return;
  const double n = static_cast<double>(result.tokens.size());
  fmt::print(stderr,
             "Prompt: {} tokens, {:.3f} tokens-per-sec\nGeneration: {} tokens, {:.3f} tokens-per-sec, stopped by {}\n",
             request.prompt.size(), static_cast<double>(request.prompt.size()) / result.prefill_seconds,
             result.tokens.size(), n > 1 ? (n - 1) / result.decode_seconds : 0.0,
             result.finish == FinishReason::stop        ? "a stop token"
             : result.finish == FinishReason::cancelled ? "you"
                                                        : "--max-tokens");
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Answer a prompt, with or without an adapter");
  auto o = std::make_shared<Options>();
  command->add_option("-m,--model", o->model, "base model: a folder (Hugging Face or MLX) or a .gguf file")->required();
  command->add_option("--adapter,--adapter-path", o->adapter, "folder of a PEFT or mlx-lm adapter");
  command->add_option("-p,--prompt", o->prompt, "what to ask");
  command->add_option("--prompt-file", o->prompt_file, "file with the prompt; - reads standard input");
  command->add_option("--ids", o->ids, "token ids instead of a text, separated by commas")->delimiter(',');
  command->add_option("--system,--system-prompt", o->system, "system message");
  command->add_option("--chat-template", o->chat_template,
                      "file with a Jinja chat template; default: the adapter's, else the model's");
  command->add_option(
      "--chat-template-args", o->chat_template_args,
      "what the chat template is told, a JSON object: {\"enable_thinking\": false}; goes before the adapter's");
  command->add_flag("--raw,--ignore-chat-template", o->raw, "the prompt is plain text: no chat template");
  command->add_option("-n,--max-tokens", o->max_tokens, "longest answer in tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-kv-size", o->max_kv_size, "room for prompt and answer in tokens; default: what is needed");
  command->add_option("--temp,--temperature", o->sampler.temperature, "0: the most likely token, always")
      ->check(number_from(0, 100))
      ->capture_default_str();
  command->add_option("--top-k", o->sampler.top_k, "keep the k most likely tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-p", o->sampler.top_p, "keep the most likely tokens up to this mass")
      ->check(number_from(0, 1))
      ->capture_default_str();
  command->add_option("--repetition-penalty", o->sampler.repetition_penalty, "1: none")
      ->check(number_from(0.01, 100))
      ->capture_default_str();
  command
      ->add_option("--repetition-context-size", o->sampler.repetition_context,
                   "tokens the penalty looks back on; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", o->sampler.seed, "of the draws")->capture_default_str();
  command->add_option("--precision", o->precision, "of prefill and cache: bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  add_device_option(*command, o->device);
  command->add_option("--threads", o->threads, "0: as many as affinity and a container's quota leave")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("-q,--quiet", o->quiet, "print the answer only");
  command->callback([o] { generate(*o); });
}

}  // namespace sluice
