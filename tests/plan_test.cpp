// The plan's prices against steps that really run.
#include "train/plan.h"

#include "core/device.h"
#include "support/oracle_model.h"
#include "train/plan_search.h"

namespace sluice::test {

namespace {

// The arena's peak in a real step over `spans`, every token but each root's first a target.
int64_t measured_peak(TestContext& ctx, OracleModel& m, const Spans& spans, const Schedule& schedule, DType dtype) {
  std::vector<int32_t> ids, rows, targets;
  for (int64_t t = 0; t < spans.num_tokens(); ++t) ids.push_back(static_cast<int32_t>((t * 7 + 3) % 101));
  for (int64_t t = 1; t < spans.num_tokens(); ++t)
    rows.push_back(static_cast<int32_t>(t - 1)), targets.push_back(ids[static_cast<size_t>(t)]);
  ctx.arena.reset_peak();
  const int64_t before = ctx.arena.used();
  forward_backward(ctx, *m.model, m.weights(), m.gradient(),
                   {.ids = ids, .spans = spans, .rows = rows, .targets = targets},
                   {.schedule = schedule, .dtype = dtype}, [](auto logp, std::span<float> dlogp) {
                     std::fill(dlogp.begin(), dlogp.end(), -1.0F / static_cast<float>(logp.size()));
                     return 0.0;
                   });
  return ctx.arena.peak() - before;
}

// What the search adds up against priced steps: the arena to the byte, pinned memory within its budget. Returns how many layers of all candidates keep in host memory.
int64_t check_search(PlanRequest request, int64_t host_budget) {
  request.host_budget_bytes = host_budget;
  int64_t hosted = 0;
  const Candidate* leaner = nullptr;
  const std::vector<Candidate> found = search_schedules(request);
  for (const Candidate& c : found) {
    CAPTURE(c.schedule.describe());
    int64_t pinned = 0;
    CHECK(c.step_bytes == price_step(request, c.schedule, request.train.front(), nullptr, &pinned));
    CHECK(c.pinned_bytes == pinned);
    CHECK(pinned <= host_budget);
    if (leaner != nullptr) CHECK((c.held_bytes() > leaner->held_bytes() && c.cost < leaner->cost));
    leaner = &c;
    hosted +=
        std::count_if(c.schedule.segments.begin(), c.schedule.segments.end(), [](const Segment& s) { return s.host; });
  }
  return hosted;
}

}  // namespace

TEST_CASE("plan: a step over many tiles peaks at the priced byte, for one sequence, packed ones and forests") {
  const std::vector<Spans> batches = {
      Spans::one(900), Spans::one(768),
      Spans({{-1, 300}, {-1, 1}, {-1, 1}, {-1, 2}, {-1, 260}, {-1, 5}, {-1, 400}}),     // short ones only in the middle
      Spans({{-1, 500}, {0, 40}, {0, 30}, {1, 3}, {1, 4}, {-1, 200}, {5, 9}, {0, 90}})  // depth 3
  };
  for (const char* name : {"llama-gqa", "mistral-like", "gemma4-e2b-like"}) {
    OracleModel m(name);
    TestContext ctx(detect_isa());
    PlanRequest request{.model = *m.model, .layout = m.adapter.layout, .device = test_device()};
    request.num_threads = ctx.pool.num_threads();
    for (size_t i = 0; i < batches.size(); ++i) {
      for (Level level : {Level::input, Level::all}) {
        CAPTURE(name);
        CAPTURE(i);
        const Schedule schedule = m.schedule(1, level);
        CHECK(price_step(request, schedule, {batches[i], batches[i].num_tokens() - 1}) ==
              measured_peak(ctx, m, batches[i], schedule, request.dtype));
      }
    }
  }
}

TEST_CASE("plan: what the search adds up for a schedule is what the step is priced at") {
  OracleModel m("llama-gqa");
  const BatchShape shape{Spans::one(900), 300};
  for (int64_t segment_size : {0, 1, 2}) {
    PlanRequest request{.model = *m.model,
                        .layout = m.adapter.layout,
                        .train = {shape},
                        .device = test_device(),
                        .segment_size = segment_size};
    check_search(request, int64_t{1} << 30);
    for (const Plan& plan : candidate_plans(request)) {
      request.budget_bytes = plan.total_bytes();
      const Plan chosen = make_plan(request);  // the search takes its own sum for the budget, the plan the priced step
      CHECK(chosen.step_bytes == price_step(request, chosen.schedule, shape));
      CHECK(chosen.total_bytes() <= plan.total_bytes());  // pinned memory is mapped at some bytes of the device's
      CHECK(chosen.relative_time <= plan.relative_time);
    }
  }
}

// In builds with the CUDA backend, on machines without a GPU.
TEST_CASE("plan: a CUDA device need not be here to be planned for, with a budget given") {
  try {
    if (is_here(Device::cuda())) return;
  } catch (const Error&) {
    return;  // no backend
  }
  OracleModel m("llama-gqa");
  m.model->device = Device::cuda();
  const BatchShape shape{Spans::one(900), 300};
  PlanRequest request{.model = *m.model, .layout = m.adapter.layout, .train = {shape}, .device = Device::cuda()};
  CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("give --memory"), Error);
  request.budget_bytes = int64_t{1} << 30;
  // Long enough that a forward of attention outlasts the copies.
  PlanRequest longer = request;
  longer.train = {{Spans::one(200000), 300}};
  for (const char* offload : {"", "true", "false"}) {
    longer.offload = offload;
    CHECK((check_search(longer, int64_t{1} << 40) > 0) == (longer.offload != "false"));
    check_search(longer, int64_t{100} << 20);
  }
  longer.offload = "true";
  longer.segment_size = 1;
  longer.host_budget_bytes = 1000;
  CHECK_THROWS_WITH_AS(search_schedules(longer), doctest::Contains("give more host_memory"), Error);
  const Plan plan = make_plan(request);
  CHECK(plan.fits());
  CHECK(plan.weight_bytes == m.model->device_bytes());
  CHECK(plan.step_bytes > 900 * m.model->config.hidden_size * 2 * m.model->config.num_layers);
  CHECK(plan_table(plan).find("no CUDA device is here") != std::string::npos);
}

// In builds with the CUDA backend: host memory belongs to CUDA's schedules.
TEST_CASE("plan: layer counts that the search's steps do not divide, and adapters in the last layers only") {
  try {
    is_here(Device::cuda());
  } catch (const Error&) {
    return;  // no backend
  }
  OracleModel m("llama-gqa");
  Model& model = *m.model;
  const std::vector<DecoderLayer> given = model.layers;
  model.layers.clear();
  model.config.layers.clear();
  model.config.num_layers = 35;
  for (int64_t l = 0; l < model.config.num_layers; ++l) {
    DecoderLayer layer = given[static_cast<size_t>(l) % given.size()];
    for (LoraLinear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      linear->layer = l;
    model.layers.push_back(layer);
    model.config.layers.push_back(layer.config);
  }
  for (int64_t last_layers : {-1, 4}) {
    const AdapterLayout layout(model.config, {.rank = 8, .alpha = 16, .last_layers = last_layers});
    PlanRequest deep{.model = model, .layout = layout, .train = {{Spans::one(200000), 300}}, .device = Device::cuda()};
    deep.host_budget_bytes = int64_t{1} << 40;
    for (const char* level : {"", "all"}) {
      deep.level = level;
      CHECK(check_search(deep, int64_t{1} << 40) > 0);
    }
    const std::vector<Candidate> found = search_schedules(deep);
    const auto keeps_all = [&](const Segment& s) {
      return s.size() == 1 && (s.level == Level::all || s.begin < layout.entries().front().layer);
    };
    CHECK(std::all_of(found.back().schedule.segments.begin(), found.back().schedule.segments.end(), keeps_all));
    for (const Candidate& c : found) {
      for (const Segment& s : c.schedule.segments) CHECK((!s.host || s.begin >= layout.entries().front().layer));
    }
  }
}

}  // namespace sluice::test
