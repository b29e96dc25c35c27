#include "train/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/bytes.h"
#include "core/device.h"
#include "core/system_memory.h"
#include "train/adapter_setup.h"
#include "train/plan_search.h"

namespace sluice {

namespace {

// Left to the driver: allocations are whole pages of 2 MiB, and kernels are loaded at their first launch.
constexpr int64_t device_reserve_bytes = int64_t{128} << 20;

int64_t free_memory(Device device) {
  check(is_here(device), ErrorCode::bad_config,
        "there is no CUDA device whose memory could be the budget; give --memory, such as 24GiB");
  if (device.type == DeviceType::cuda) return memory_of(device).total_bytes - device_reserve_bytes;
  return available_memory();
}

template <class Body>
int64_t counted(const PlanRequest& request, Body body) {
  Arena arena = Arena::counting(request.device);
  ThreadPool pool(request.num_threads);
  Context ctx{.arena = arena, .pool = pool, .device = request.device, .isa = request.isa};
  return body(ctx);
}

std::vector<int32_t> zeros(int64_t count) { return std::vector<int32_t>(static_cast<size_t>(count), 0); }

int64_t price_forward(const PlanRequest& request, const Schedule& schedule, const BatchShape& shape,
                      const AdapterLayout& layout) {
  return counted(request, [&](Context& ctx) {
    const std::vector<int32_t> ids = zeros(shape.spans.num_tokens()), rows = zeros(shape.num_targets);
    forward_logps(ctx, request.model, unread_adapter(layout),
                  {.ids = ids, .spans = shape.spans, .rows = rows, .targets = rows},
                  {.schedule = schedule, .dtype = request.dtype});
    return ctx.arena.peak();
  });
}

// Half of what is free: pinned pages are lost to everybody else for the whole run.
PlanRequest with_host_budget(PlanRequest request) {
  if (request.host_budget_bytes == 0) request.host_budget_bytes = available_memory() / 2;
  return request;
}

int64_t process_bytes(const PlanRequest& request) { return request.process_bytes ? request.process_bytes() : 0; }

// What no schedule changes.
Plan describe_around(const PlanRequest& request) {
  Plan plan;
  plan.device = request.device;
  plan.mapped_bytes = request.model.weight_bytes();
  plan.weight_bytes = request.device.type == DeviceType::cuda ? request.model.device_bytes() : 0;
  plan.parameter_bytes = resident_bytes(request.layout);
  plan.process_bytes = process_bytes(request);
  plan.budget_bytes = request.budget_bytes > 0 ? request.budget_bytes : free_memory(request.device);
  plan.host_budget_bytes = request.host_budget_bytes;
  return plan;
}

Plan describe(const PlanRequest& request, const Schedule& schedule, double relative_time) {
  Plan plan = describe_around(request);
  plan.schedule = schedule;
  plan.relative_time = relative_time;
  for (const BatchShape& shape : request.train)
    plan.step_bytes = std::max(plan.step_bytes, price_step(request, schedule, shape, nullptr, &plan.pinned_bytes));
  for (const BatchShape& shape : request.validation) {
    for (const AdapterLayout* layout : {&request.layout, request.reference}) {
      if (layout == nullptr) continue;
      plan.validation_bytes = std::max(plan.validation_bytes, price_forward(request, schedule, shape, *layout));
    }
  }
  const int64_t norm_bytes = counted(request, [&](Context& ctx) {
    refresh_norms(ctx, request.model, unread_adapter(request.layout));
    return ctx.arena.peak();
  });
  plan.step_bytes = std::max({plan.step_bytes, plan.validation_bytes, norm_bytes});
  plan.process_bytes = process_bytes(request) + mapping_bytes(plan.pinned_bytes);  // with the kernels of every batch
  std::vector<PhaseRecord> log;
  const BatchShape& shape = largest_batch(request);
  plan.num_tokens = shape.spans.num_tokens();
  price_step(request, schedule, shape, &log);
  for (const PhaseRecord& r : log) {
    if (r.phase == Phase::head) plan.kept_bytes = r.held_bytes, plan.head_bytes = r.peak_bytes - r.held_bytes;
    if (r.phase == Phase::backward)
      plan.worst_segment_bytes = std::max(plan.worst_segment_bytes, r.peak_bytes - r.held_bytes);
  }
  return plan;
}

}  // namespace

int64_t price_step(const PlanRequest& request, const Schedule& schedule, const BatchShape& shape,
                   std::vector<PhaseRecord>* log, int64_t* pinned_bytes) {
  Arena pinned = Arena::counting(Device::cpu());
  return counted(request, [&](Context& ctx) {
    const std::vector<int32_t> ids = zeros(shape.spans.num_tokens()), rows = zeros(shape.num_targets);
    const Adapter adapter = unread_adapter(request.layout);
    forward_backward(ctx, request.model, adapter, adapter,
                     {.ids = ids, .spans = shape.spans, .rows = rows, .targets = rows},
                     {.schedule = schedule,
                      .dtype = request.dtype,
                      .dropout = {.p = request.layout.spec().dropout},
                      .pinned = &pinned,
                      .log = log},
                     [](auto, auto) { return 0.0; });
    if (pinned_bytes != nullptr) *pinned_bytes = std::max(*pinned_bytes, pinned.peak());
    if (log == nullptr) return ctx.arena.peak();
    int64_t peak = 0;
    for (const PhaseRecord& r : *log) peak = std::max(peak, r.peak_bytes);
    return peak;
  });
}

Plan make_plan(const PlanRequest& asked) {
  SLUICE_ASSERT(!asked.train.empty());
  const PlanRequest request = with_host_budget(asked);
  const std::vector<Candidate> found = search_schedules(request);
  const double fastest = found.back().cost;
  const Plan around = describe_around(request);
  const int64_t for_step = around.budget_bytes - around.weight_bytes - around.parameter_bytes - around.process_bytes;
  // The search looks at one batch. Where another needs more than the budget, the choice is made again with that much less.
  for (int64_t less = 0;;) {
    const Candidate* best = nullptr;
    for (const Candidate& c : found) {
      if (c.held_bytes() <= for_step - less) best = &c;
    }
    const Candidate& chosen = best != nullptr ? *best : found.front();
    const Plan plan = describe(request, chosen.schedule, chosen.cost / fastest);
    if (plan.fits() || best == nullptr) return plan;
    less += plan.missing_bytes();
  }
}

std::vector<Plan> candidate_plans(const PlanRequest& asked) {
  const PlanRequest request = with_host_budget(asked);
  const std::vector<Candidate> found = search_schedules(request);
  const double fastest = found.back().cost;
  // Thinned to steps of at least 10 % in memory.
  std::vector<Plan> plans;
  int64_t last_bytes = 0;
  for (const Candidate& c : found) {
    if (!plans.empty() && c.step_bytes < last_bytes + last_bytes / 10 && c.cost > fastest) continue;
    last_bytes = c.step_bytes;
    plans.push_back(describe(request, c.schedule, c.cost / fastest));
  }
  return plans;
}

std::string plan_table(const Plan& plan) {
  std::string text;
  const auto row = [&](std::string_view what, int64_t bytes, std::string_view note) {
    text += fmt::format("  {:<30} {:>12}   {}\n", what, format_bytes(bytes), note);
  };
  text += fmt::format("Plan for {} tokens: {}\n", plan.num_tokens, plan.schedule.describe());
  const bool cuda = plan.device.type == DeviceType::cuda;
  if (cuda) row("base", plan.weight_bytes, "as its file holds it, on the device");
  row("adapter, gradient, moments", plan.parameter_bytes, "float32, whole run");
  row("kept by the forward", plan.kept_bytes, "inputs and what the levels keep");
  row("worst segment", plan.worst_segment_bytes, "above what is kept then");
  row("head", plan.head_bytes, "above what is kept then");
  row("step arena", plan.step_bytes, cuda ? "exact; one allocation" : "exact; touched at start");
  row("validation", plan.validation_bytes, "inside the step arena");
  const bool assumed = !is_here(plan.device);
  row("process", plan.process_bytes,
      assumed ? "CUDA's context and kernels"
      : cuda  ? "CUDA's context, kernels and tables of pinned memory, and other processes"
              : "program, tokenizer, data, kernels");
  row("total", plan.total_bytes(), fmt::format("of {}", format_bytes(plan.budget_bytes)));
  if (plan.pinned_bytes > 0)
    row("pinned host memory", plan.pinned_bytes,
        fmt::format("of {}, besides: what waits there for the backward", format_bytes(plan.host_budget_bytes)));
  if (!cuda) row("base, mapped from its file", plan.mapped_bytes, "the system can drop and reread it");
  text += fmt::format("  estimated time {:.2f} x that of the fastest schedule\n", plan.relative_time);
  if (assumed) text += "  no CUDA device is here: priced as an H100 or H200 would run it\n";
  return text;
}

Json plan_json(const Plan& plan) {
  const auto cuda_or_cpu = [](Device device) { return device.type == DeviceType::cuda ? "cuda" : "cpu"; };
  Json segments = Json::array();
  for (const Segment& s : plan.schedule.segments) {
    segments.push_back({{"begin", s.begin},
                        {"end", s.end},
                        {"level", s.level == Level::input       ? "input"
                                  : s.level == Level::attention ? "attention"
                                                                : "all"},
                        {"host", s.host}});
  }
  return {{"num_tokens", plan.num_tokens},
          {"fits", plan.fits()},
          {"missing_bytes", plan.missing_bytes()},
          {"budget_bytes", plan.budget_bytes},
          {"total_bytes", plan.total_bytes()},
          {"parameter_bytes", plan.parameter_bytes},
          {"step_bytes", plan.step_bytes},
          {"kept_bytes", plan.kept_bytes},
          {"worst_segment_bytes", plan.worst_segment_bytes},
          {"head_bytes", plan.head_bytes},
          {"validation_bytes", plan.validation_bytes},
          {"process_bytes", plan.process_bytes},
          {"mapped_bytes", plan.mapped_bytes},
          {"weight_bytes", plan.weight_bytes},
          {"pinned_bytes", plan.pinned_bytes},
          {"host_budget_bytes", plan.host_budget_bytes},
          {"device", cuda_or_cpu(plan.device)},
          {"device_is_here", is_here(plan.device)},
          {"relative_time", plan.relative_time},
          {"tile", plan.schedule.tile},
          {"head", plan.schedule.head == HeadSchedule::by_rows ? "by_rows" : "by_blocks"},
          {"head_rows", plan.schedule.head_rows},
          {"offload", plan.schedule.offload},
          {"segments", std::move(segments)}};
}

}  // namespace sluice
