// Generation against the oracle's greedy tokens, and what must hold for any model.
#include "infer/generate.h"

#include "data/model_text.h"
#include "infer/adapter_set.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/trainer.h"

namespace sluice::test {

TEST_CASE("generate: greedy tokens equal the oracle's in fp32 with and without the adapter, in batches too") {
  ThreadPool pool(2);
  for (const std::string& name : oracle_models()) {
    CAPTURE(name);
    OracleModel m(name);
    Generator generator(pool, *m.model, {.max_sequences = 3, .max_tokens = 64, .dtype = DType::f32});
    for (const char* which : {"greedy_base", "greedy_lora"}) {
      if (!m.oracle.meta().contains(which)) continue;
      CAPTURE(which);
      const Json& golden = m.oracle.meta()[which];
      const auto tokens = golden["tokens"].get<std::vector<int32_t>>();
      if (golden["min_top2_margin"].get<double>() < 1e-3) continue;
      const GenerateRequest request{.prompt = golden["prompt"].get<std::vector<int32_t>>(),
                                    .max_new_tokens = static_cast<int64_t>(tokens.size())};
      GenerateRequest other = request;
      other.prompt.pop_back();
      const Adapter adapter = std::string(which) == "greedy_lora" ? m.weights() : Adapter();
      const std::vector<GenerateRequest> requests = {other, request, request, other, request};
      const auto results = generator.generate(requests, adapter);
      for (size_t i : {1, 2, 4}) CHECK(results[i].tokens == tokens);
      CHECK(results[0].tokens == results[3].tokens);
      CHECK(generator.generate(request, adapter).tokens == tokens);
    }
  }
}

TEST_CASE("FieldI4_stop: the ids that end a text and those that end a turn both stop, and are not part of the output") {
  OracleModel m("llama-gqa");
  ThreadPool pool(1);
  Generator generator(pool, *m.model, {.max_sequences = 1, .max_tokens = 64, .dtype = DType::f32});
  const Json& golden = m.oracle.meta()["greedy_base"];
  const auto tokens = golden["tokens"].get<std::vector<int32_t>>();
  GenerateRequest request{.prompt = golden["prompt"].get<std::vector<int32_t>>(), .max_new_tokens = 16};
  for (int32_t stop : {tokens[3], tokens[1]}) {
    request.stop_ids = {999, stop};
    const GenerateResult result = generator.generate(request, {});
    CHECK(result.finish == FinishReason::stop);
    CHECK(std::find(result.tokens.begin(), result.tokens.end(), stop) == result.tokens.end());
    CHECK(result.tokens.size() == static_cast<size_t>(std::find(tokens.begin(), tokens.end(), stop) - tokens.begin()));
  }
  TinyRun run;
  const ModelText text = load_model_text(*open_model(run.config.model));
  CHECK(text.stop_ids == std::vector<int32_t>{258, 256});
}

TEST_CASE("FieldI6_dropout: an adapter trained with dropout generates the same twice") {
  TinyRun run;
  run.config.dropout = 0.5;
  run.config.learning_rate = 1e-2;
  Heard heard;
  train(run.config, heard);
  const auto model = on_test_device(load_model(run.config.model));
  ThreadPool pool(2);
  AdapterSet adapters(pool, *model);
  adapters.mount("tuned", run.config.adapter_path + "/last");
  CHECK(adapters.get("tuned")->layout().spec().dropout == 0.5F);
  Generator generator(pool, *model, {.max_sequences = 1, .max_tokens = 64});
  const GenerateRequest request{.prompt = {257, 115, 97, 121, 32, 104}, .max_new_tokens = 20};
  const GenerateResult first = generator.generate(request, *adapters.get("tuned")),
                       second = generator.generate(request, *adapters.get("tuned"));
  CHECK(first.tokens == second.tokens);
  CHECK(first.smallest_gap == second.smallest_gap);
  CHECK(generator.generate(request, *adapters.get("")).smallest_gap != first.smallest_gap);
}

TEST_CASE("FieldI3_template: the saved adapter carries the template and the stop tokens of its training") {
  TinyRun run;
  Heard heard;
  run.config.max_steps = 1;
  train(run.config, heard);
  const fs::path last = fs::path(run.config.adapter_path) / "last";
  CHECK(read_whole_file(last / "chat_template.jinja") == chatml);
  CHECK(Json::parse(read_whole_file(last / "generation_config.json"))["eos_token_id"] == Json({258, 256}));
  // What training saw of a prompt is what generation renders.
  const ModelText text = load_model_text(*open_model(run.config.model));
  const ChatTemplate saved = ChatTemplate::from_sources({{.text = read_whole_file(last / "chat_template.jinja")}}, {});
  const std::vector<ChatMessage> prompt = {{"user", "say hello"}};
  const Sample sample = make_sample(R"({"prompt":"say hello","completion":"hi"})", text);
  const auto ids = text.tokenizer
                       .encode(saved.render({.messages = to_json(prompt), .add_generation_prompt = true}).text,
                               {.add_special = true})
                       .ids;
  REQUIRE(sample.ids.size() > ids.size());
  CHECK(std::equal(ids.begin(), ids.end(), sample.ids.begin()));
}

TEST_CASE("model text: a template that cannot be read is refused where it is needed and not before") {
  TinyRun run;
  const fs::path file = run.folder / "model/tokenizer_config.json";
  Json config = Json::parse(read_whole_file(file));
  config["chat_template"] = "{% for m in messages %}{{ m | mystery }}{% endfor %}";
  write_text(file, config.dump());
  ModelText text = load_model_text(*open_model(run.config.model));
  CHECK(text.tokenizer.encode("abc", {}).ids.size() == 3);
  CHECK_FALSE(text.chat.has_value());
  CHECK_THROWS_WITH_AS(text.need_chat(), doctest::Contains("mystery"), Error);
  // Not silently as ready text: the model has a template.
  CHECK_THROWS_WITH_AS(make_sample(R"({"prompt":"a","completion":"b"})", text), doctest::Contains("mystery"), Error);
  write_text(run.folder / "known.jinja", chatml);
  text.use_template((run.folder / "known.jinja").string());
  CHECK(text.need_chat().sources()[0].text == chatml);
}

TEST_CASE(
    "FieldD2_stop: after overfitting one row whose end token is also the padding token, generation stops where the row "
    "ends" *
    doctest::test_suite("full")) {
  TinyRun run;
  write_text(run.folder / "data/train.jsonl", R"({"prompt":"say abc","completion":"qwer"})"
                                              "\n");
  fs::remove(run.folder / "data/valid.jsonl");
  run.config.max_steps = 150;
  run.config.rank = 16;
  run.config.learning_rate = 2e-2;
  run.config.save_every = 0;
  run.config.steps_per_report = 50;
  Heard heard;
  train(run.config, heard);
  const auto model = on_test_device(load_model(run.config.model));
  const ModelText text = load_model_text(*model->source);
  ThreadPool pool(2);
  AdapterSet adapters(pool, *model);
  adapters.mount("tuned", run.config.adapter_path + "/last");
  Generator generator(pool, *model, {.max_sequences = 1, .max_tokens = 128, .dtype = DType::f32});
  const std::vector<ChatMessage> prompt = {{"user", "say abc"}};
  const auto ids =
      text.tokenizer
          .encode(text.need_chat().render({.messages = to_json(prompt), .add_generation_prompt = true}).text,
                  {.add_special = true})
          .ids;
  const GenerateResult result =
      generator.generate({.prompt = ids, .stop_ids = text.stop_ids, .max_new_tokens = 40}, *adapters.get("tuned"));
  CHECK(text.tokenizer.decode(result.tokens) == "qwer");
  CHECK(result.finish == FinishReason::stop);
}

TEST_CASE(
    "sampler: greedy takes the lowest id of equals, top-k and top-p cut, the penalty works both ways, a seed repeats") {
  std::vector<float> z = {1, 3, 3, -2, 0};
  const auto draw = [&](SamplerOptions o, std::vector<int32_t> history = {}) {
    std::vector<float> copy = z;
    return sample(copy, history, o, 0);
  };
  CHECK(draw({}) == 1);
  CHECK(draw({.repetition_penalty = 4}, {1}) == 2);
  CHECK(draw({.repetition_penalty = 4}, {1, 2}) == 0);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int32_t k = draw({.temperature = 5, .top_k = 2, .seed = seed}),
                  p = draw({.temperature = 1, .top_p = 0.4, .seed = seed});
    CHECK((k == 1 || k == 2));
    CHECK(p == 1);
    CHECK(draw({.temperature = 5, .seed = seed}) == draw({.temperature = 5, .seed = seed}));
  }
  int seen = 0;
  for (int32_t id = 0; id < 5; ++id) {
    for (uint64_t seed = 0; seed < 400 && !(seen >> id & 1); ++seed)
      seen |= (draw({.temperature = 3, .seed = seed}) == id) << id;
  }
  CHECK(seen == 31);
}

// What the generator holds is not in units of the arena's alignment then.
TEST_CASE("generate: vocabularies of any size") {
  for (int64_t size : {319, 317, 257}) {
    CAPTURE(size);
    OracleModel m("llama-gqa");
    m.model->config.vocab_size = m.model->head.rows = size;
    ThreadPool pool(2);
    Generator generator(pool, *m.model, {.max_sequences = 1, .max_tokens = 64});
    CHECK(generator.generate(GenerateRequest{.prompt = {1, 7, 5}, .max_new_tokens = 4}, {}).tokens.size() == 4);
  }
}

TEST_CASE("generate: a prompt that is empty or too long is refused") {
  OracleModel m("llama-gqa");
  ThreadPool pool(1);
  Generator generator(pool, *m.model, {.max_sequences = 1, .max_tokens = 8});
  CHECK_THROWS_AS(generator.generate(GenerateRequest{}, {}), Error);
  CHECK_THROWS_AS(generator.generate(GenerateRequest{.prompt = std::vector<int32_t>(8, 1)}, {}), Error);
}

}  // namespace sluice::test
