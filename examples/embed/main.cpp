// Sluice inside another program: load a base, train three steps on token ids, generate with the adapter.
//
//   embed model      a folder (Hugging Face or MLX) or a .gguf file
#include <sluice/sluice.h>

#include <cstdio>

int main(int argc, char** argv) try {
  using namespace sluice;
  check(argc == 2, ErrorCode::bad_config, "usage: embed <model>");
  const std::unique_ptr<Model> model = load_model(argv[1]);
  const AdapterLayout layout(model->config, {.rank = 4, .alpha = 8});
  const std::vector<int32_t> ids = {1, 17, 23, 5, 17, 23, 5, 17}, rows = {2, 3, 4, 5, 6}, targets = {5, 17, 23, 5, 17};
  const Spans spans = Spans::one(static_cast<int64_t>(ids.size()));
  const StepBatch batch{.ids = ids, .spans = spans, .rows = rows, .targets = targets};

  // Memory is planned before it is taken.
  const Plan plan = make_plan(
      {.model = *model, .layout = layout, .train = {{spans, static_cast<int64_t>(rows.size())}}, .validation = {}});
  std::printf("%s", plan_table(plan).c_str());
  ThreadPool pool(ThreadPool::default_threads());
  Arena arena = Arena::allocate(Device::cpu(), plan.step_bytes),
        resident = Arena::allocate(Device::cpu(), plan.parameter_bytes);
  Context ctx{.arena = arena, .pool = pool};
  const int64_t n = layout.size();
  Tensor p = resident.tensor(DType::f32, {n}), g = resident.tensor(DType::f32, {n});
  Tensor m = resident.tensor(DType::f32, {n}), v = resident.tensor(DType::f32, {n});
  initialise_adapter(layout, /*seed=*/0, p.as<float>());
  for (Tensor moment : {m, v}) zero(ctx, {.tensor = moment});
  const Adapter adapter(layout, p), gradient(layout, g);

  for (int64_t step = 1; step <= 3; ++step) {
    zero(ctx, {.tensor = g});
    const double loss = forward_backward(ctx, *model, adapter, gradient, batch, {.schedule = plan.schedule},
                                         [](std::span<const float> logp, std::span<float> dlogp) {
                                           double sum = 0;
                                           for (size_t i = 0; i < logp.size(); ++i) {
                                             sum -= static_cast<double>(logp[i]) / static_cast<double>(logp.size());
                                             dlogp[i] = -1.0F / static_cast<float>(logp.size());
                                           }
                                           return sum;
                                         });
    adamw(ctx, {.p = p, .m = m, .v = v, .g = g, .lr = 1e-2F, .t = step});
    std::printf("step %d: loss %.4f\n", static_cast<int>(step), loss);
  }
  Generator generator(pool, *model, {.max_sequences = 1, .max_tokens = 64});
  const GenerateResult result =
      generator.generate({.prompt = {1, 17, 23}, .stop_ids = {}, .max_new_tokens = 8, .sampler = {}}, adapter);
  for (int32_t id : result.tokens) std::printf("%d ", id);
  std::printf("\n");
  return 0;
} catch (const sluice::Error& e) {
  std::fprintf(stderr, "embed: %s\n", e.what());
  return 1;
}
