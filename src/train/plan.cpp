#include "train/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>

#include "core/device.h"
#include "train/adapter_setup.h"

namespace sluice {

namespace {

constexpr std::array<Level, 3> levels = {Level::input, Level::attention, Level::all};

// What a device does to a step's time; only ratios matter to the choice.
struct Rates {
  // Share of the large matrix product's rate that a part of the step reaches.
  double linear, attention;
  // What a tile costs besides its rows, in rows of a matrix product: a plain weight's launches, and a quantised one's dequantisation.
  double plain_tile_rows, quantised_tile_rows;
};
// Measured by bench/ on two cores (AVX512-BF16) and on one H200.
Rates rates_of(Device device) {
  if (device.type == DeviceType::cuda)
    return {.linear = 0.8, .attention = 0.55, .plain_tile_rows = 300, .quantised_tile_rows = 600};
  return {.linear = 0.85, .attention = 0.55, .plain_tile_rows = 40, .quantised_tile_rows = 40};
}

// Copies to host memory run beside the computation; they take a little of the device's memory bandwidth.
constexpr double offload_cost = 1.02;

// Left to the driver: allocations are whole pages of 2 MiB, and kernels are loaded at their first launch.
constexpr int64_t device_reserve_bytes = int64_t{128} << 20;

int64_t free_memory(Device device) {
  check(is_here(device), ErrorCode::bad_config,
        "there is no CUDA device whose memory could be the budget; give --memory, such as 24GiB");
  if (device.type == DeviceType::cuda) return memory_of(device).total_bytes - device_reserve_bytes;
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t value = 0;
  while (meminfo >> key >> value >> unit) {
    if (key == "MemAvailable:") return value * 1024;
  }
  return 0;
}

int64_t layer_weights(const DecoderLayer& l) {
  int64_t count = 0;
  for (const LoraLinear* linear :
       {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_projection}) {
    count += linear->weight.rows * linear->weight.cols;
  }
  return count;
}

// Time of one step in units of multiply-adds at the large matrix product's rate, without the head, which no level changes.
class CostModel {
 public:
  explicit CostModel(const PlanRequest& request, const BatchShape& shape)
      : request_(request), rates_(rates_of(request.device)), tokens_(shape.spans.num_tokens()) {
    for (const DecoderLayer& l : request.model.layers) {
      const double pairs = static_cast<double>(shape.spans.visible_pairs(l.config.window));
      attention_.push_back(2 * pairs * static_cast<double>(l.config.num_heads * l.config.head_dim) / rates_.attention);
    }
  }

  double step(const Schedule& schedule) const {
    double cost = 0;
    for (const Segment& s : schedule.segments) {
      for (int64_t l = s.begin; l < s.end; ++l) {
        const auto& layer = request_.model.layers[static_cast<size_t>(l)];
        const double weights = static_cast<double>(layer_weights(layer));
        const double mlp_down = static_cast<double>(layer.down.weight.rows * layer.down.weight.cols);
        const double attention = attention_[static_cast<size_t>(l)];
        const double once = linear(weights, schedule.tile);
        cost += 2 * once + 3.5 * attention;  // forward and backward, nothing twice
        const bool last = l + 1 == s.end;
        if (s.size() > 1 && !last) cost += once + attention;  // the redo inside a segment
        const Level kept = s.size() == 1 || !last ? s.level : Level::input;
        if (kept != Level::all) cost += once - linear(mlp_down, schedule.tile);
        if (kept == Level::input) cost += attention;
      }
    }
    return cost;
  }

 private:
  double linear(double weights, int64_t tile) const {
    const double tiles = static_cast<double>((tokens_ + tile - 1) / tile);
    return weights * (static_cast<double>(tokens_) + tile_rows(request_.model.layers.front().gate.weight) * tiles) /
           rates_.linear;
  }
  double tile_rows(const Weight& weight) const {
    return weight.format == WeightFormat::bf16 ? rates_.plain_tile_rows : rates_.quantised_tile_rows;
  }

  const PlanRequest& request_;
  Rates rates_;
  int64_t tokens_;
  std::vector<double> attention_;
};

template <class Body>
int64_t counted(const PlanRequest& request, Body body) {
  Arena arena = Arena::counting(request.device);
  ThreadPool pool(request.num_threads);
  Context ctx{.arena = arena, .pool = pool, .device = request.device, .isa = request.isa};
  return body(ctx);
}

// The adapter's numbers lie in another arena; here its layout is what matters.
Adapter unread_adapter(const AdapterLayout& layout) {
  const auto unread = [](int64_t count) {
    return Tensor{.data = reinterpret_cast<void*>(Arena::alignment), .dtype = DType::f32, .shape = {count}};
  };
  const int64_t norms = layout.num_norms();
  return {layout, unread(layout.size()), norms > 0 ? unread(norms) : Tensor{}};
}

std::vector<int32_t> zeros(int64_t count) { return std::vector<int32_t>(static_cast<size_t>(count), 0); }

// The searched part of memory, additive over layers: what a level keeps, and what each phase needs above what is kept. Three runs on a
// counting arena (one a level) fill it, and every assignment of levels to layers is then priced by addition.
struct PhaseTable {
  int64_t below = 0;                                      // held before the first layer's kept input
  std::vector<std::array<int64_t, 3>> kept;               // by layer and level: input and saved tensors
  std::vector<std::array<int64_t, 3>> forward, backward;  // peaks above what the forward held before the layer

  int64_t peak(const std::vector<Level>& choice, int64_t head) const {
    int64_t held = below, worst = 0;
    std::vector<int64_t> held_at(choice.size());
    for (size_t l = 0; l < choice.size(); ++l) {
      held_at[l] = held;
      worst = std::max(worst, held + forward[l][static_cast<size_t>(choice[l])]);
      held += kept[l][static_cast<size_t>(choice[l])];
    }
    worst = std::max(worst, held + head);
    for (size_t l = 0; l < choice.size(); ++l)
      worst = std::max(worst, held_at[l] + backward[l][static_cast<size_t>(choice[l])]);
    return worst;
  }
};

PhaseTable phase_table(const PlanRequest& request, const Schedule& like, const BatchShape& shape) {
  const auto L = static_cast<size_t>(request.model.config.num_layers);
  PhaseTable table;
  table.kept.resize(L);
  table.forward.resize(L);
  table.backward.resize(L);
  for (Level level : levels) {
    Schedule schedule = Schedule::uniform(request.model.config.num_layers, 1, level);
    schedule.tile = like.tile;
    schedule.head = like.head;
    schedule.head_rows = like.head_rows;
    schedule.offload = like.offload;
    std::vector<PhaseRecord> log;
    price_step(request, schedule, shape, &log);
    const auto i = static_cast<size_t>(level);
    std::vector<int64_t> held(L + 1);  // by the forward before each layer, and by the head
    for (const PhaseRecord& r : log) {
      const auto l = static_cast<size_t>(r.segment);
      if (r.phase == Phase::forward) {
        held[l] = r.held_bytes;
        table.forward[l][i] = r.peak_bytes - r.held_bytes;
      } else if (r.phase == Phase::head) {
        held[L] = r.held_bytes;
      } else {
        table.backward[l][i] = r.peak_bytes - held[l];
      }
    }
    table.below = held[0];
    for (size_t l = 0; l < L; ++l) table.kept[l][i] = held[l + 1] - held[l];
  }
  return table;
}

Schedule with_levels(const Schedule& like, const std::vector<Level>& choice) {
  Schedule schedule = like;
  schedule.segments.clear();
  for (size_t l = 0; l < choice.size(); ++l) {
    schedule.segments.push_back(
        {.begin = static_cast<int64_t>(l), .end = static_cast<int64_t>(l) + 1, .level = choice[l]});
  }
  return schedule;
}

// The largest batch by tokens, then by targets: what the search looks at. Every other batch is priced under the chosen schedule.
const BatchShape& largest(const std::vector<BatchShape>& shapes) {
  return *std::max_element(shapes.begin(), shapes.end(), [](const BatchShape& a, const BatchShape& b) {
    return std::pair(a.spans.num_tokens(), a.num_targets) < std::pair(b.spans.num_tokens(), b.num_targets);
  });
}

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
  plan.process_bytes = process_bytes(request);  // with the kernels of every batch
  std::vector<PhaseRecord> log;
  const BatchShape& shape = largest(request.train);
  plan.num_tokens = shape.spans.num_tokens();
  price_step(request, schedule, shape, &log);
  for (const PhaseRecord& r : log) {
    if (r.phase == Phase::head) plan.kept_bytes = r.held_bytes, plan.head_bytes = r.peak_bytes - r.held_bytes;
    if (r.phase == Phase::backward)
      plan.worst_segment_bytes = std::max(plan.worst_segment_bytes, r.peak_bytes - r.held_bytes);
  }
  return plan;
}

// Of a step priced with one way of the head, the peak with another, whose phase needs `head_bytes`.
int64_t peak_with_head(const std::vector<PhaseRecord>& log, int64_t head_bytes) {
  int64_t peak = 0;
  for (const PhaseRecord& r : log)
    peak = std::max(peak, r.phase == Phase::head ? r.held_bytes + head_bytes : r.peak_bytes);
  return peak;
}

// What the head's phase needs above what is held; no segment, level or tile changes it.
int64_t head_bytes(const PlanRequest& request, Schedule like, const BatchShape& shape) {
  like.segments = Schedule::uniform(request.model.config.num_layers, 1, Level::input).segments;
  std::vector<PhaseRecord> log;
  price_step(request, like, shape, &log);
  const auto head = std::find_if(log.begin(), log.end(), [](const PhaseRecord& r) { return r.phase == Phase::head; });
  return head->peak_bytes - head->held_bytes;
}

struct Candidate {
  Schedule schedule;
  int64_t step_bytes = 0;
  double cost = 0;
};

// A way of the head: its memory and its time.
struct Head {
  Schedule like;
  int64_t bytes = 0;
  double cost = 0;
};

// Sizes of segments of several layers that the search tries; `wanted` > 0: that one alone.
std::vector<int64_t> segment_sizes(int64_t num_layers, int64_t wanted) {
  if (wanted == 1) return {};
  if (wanted > 1) return {std::min(wanted, num_layers)};
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size <= num_layers; size = size < 4 ? size + 1 : size * 3 / 2) sizes.push_back(size);
  return sizes;
}

std::vector<Candidate> search(const PlanRequest& request) {
  const BatchShape& shape = largest(request.train);
  const CostModel cost(request, shape);
  const int64_t L = request.model.config.num_layers, N = shape.spans.num_tokens();
  std::vector<Candidate> found;
  const auto levels_allowed = [&](Level level) {
    return request.level.empty() || request.level == (level == Level::input       ? "input"
                                                      : level == Level::attention ? "attention"
                                                                                  : "all");
  };
  std::vector<int64_t> tiles, head_rows;
  const int64_t whole = (N + row_chunk - 1) / row_chunk * row_chunk;
  const bool cuda = request.device.type == DeviceType::cuda;
  const int64_t smallest_tile = cuda ? 1024 : row_chunk, largest_tile = cuda ? 32768 : 4096;
  for (int64_t tile = smallest_tile; tile < whole && tile <= largest_tile; tile *= 2) tiles.push_back(tile);
  tiles.push_back(std::min<int64_t>(whole, largest_tile));
  if (request.tile > 0) tiles = {request.tile};
  const Rates rates = rates_of(request.device);
  if (cuda) head_rows = {2048, 4096, 8192};
  else head_rows = {64, 128, 256};
  if (request.head_rows > 0) head_rows = {request.head_rows};
  std::vector<Head> heads;
  for (int64_t rows : head_rows) {
    Schedule like;
    like.head = request.head == "by_blocks" ? HeadSchedule::by_blocks : HeadSchedule::by_rows;
    like.head_rows = rows;
    // Small row chunks dequantise the head more often.
    heads.push_back({.like = like,
                     .bytes = head_bytes(request, like, shape),
                     .cost = 2 * static_cast<double>(request.model.head.rows * request.model.head.cols) *
                             static_cast<double>(shape.num_targets) *
                             (1 + rates.quantised_tile_rows / static_cast<double>(rows)) / rates.linear});
  }
  check(cuda || request.offload != "true", ErrorCode::bad_config,
        "offload: true needs device: cuda; on the CPU leave it out, the plan recomputes instead");
  std::vector<bool> offloads = {false};
  if (cuda && request.offload != "false") offloads.push_back(true);
  if (request.offload == "true") offloads = {true};
  for (int64_t tile : tiles)
    for (bool offload : offloads) {
      for (Head& head : heads) head.like.tile = tile, head.like.offload = offload;
      const double slower = offload ? offload_cost : 1;
      if (request.segment_size <= 1) {
        const PhaseTable table = phase_table(request, heads.front().like, shape);
        // The last layers keep most: their memory is the first to be given back.
        for (int64_t all = 0; all <= L; ++all) {
          for (int64_t attention = 0; attention + all <= L; ++attention) {
            std::vector<Level> choice(static_cast<size_t>(L), Level::input);
            for (int64_t l = L - all - attention; l < L - all; ++l) choice[static_cast<size_t>(l)] = Level::attention;
            for (int64_t l = L - all; l < L; ++l) choice[static_cast<size_t>(l)] = Level::all;
            if (!std::all_of(choice.begin(), choice.end(), levels_allowed)) continue;
            const double layers_cost = slower * cost.step(with_levels(heads.front().like, choice));
            for (const Head& head : heads) {
              found.push_back({.schedule = with_levels(head.like, choice),
                               .step_bytes = table.peak(choice, head.bytes),
                               .cost = layers_cost + head.cost});
            }
          }
        }
      }
      for (int64_t size : segment_sizes(L, request.segment_size)) {
        for (Level level : levels) {
          if (!levels_allowed(level)) continue;
          Schedule schedule = heads.front().like;
          schedule.segments = Schedule::uniform(L, size, level).segments;
          std::vector<PhaseRecord> log;
          price_step(request, schedule, shape, &log);
          const double layers_cost = slower * cost.step(schedule);
          for (const Head& head : heads) {
            schedule.head_rows = head.like.head_rows;
            found.push_back(
                {.schedule = schedule, .step_bytes = peak_with_head(log, head.bytes), .cost = layers_cost + head.cost});
          }
        }
      }
    }
  SLUICE_ASSERT(!found.empty());
  return found;
}

double fastest_cost(const std::vector<Candidate>& found) {
  double best = std::numeric_limits<double>::max();
  for (const Candidate& c : found) best = std::min(best, c.cost);
  return best;
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

Plan make_plan(const PlanRequest& request) {
  SLUICE_ASSERT(!request.train.empty());
  const std::vector<Candidate> found = search(request);
  const double fastest = fastest_cost(found);
  const Plan around = describe_around(request);
  const int64_t for_step = around.budget_bytes - around.weight_bytes - around.parameter_bytes - around.process_bytes;
  const Candidate* leanest = &found.front();
  for (const Candidate& c : found) {
    if (c.step_bytes < leanest->step_bytes) leanest = &c;
  }
  // The search looks at one batch. Where another needs more than the budget, the choice is made again with that much less.
  for (int64_t less = 0;;) {
    const Candidate* best = nullptr;
    for (const Candidate& c : found) {
      if (c.step_bytes > for_step - less) continue;
      // Of equal times the leaner one.
      if (best == nullptr || std::pair(c.cost, c.step_bytes) < std::pair(best->cost, best->step_bytes)) best = &c;
    }
    const Candidate& chosen = best != nullptr ? *best : *leanest;
    const Plan plan = describe(request, chosen.schedule, chosen.cost / fastest);
    if (plan.fits() || best == nullptr) return plan;
    less += plan.missing_bytes();
  }
}

std::vector<Plan> candidate_plans(const PlanRequest& request) {
  std::vector<Candidate> found = search(request);
  const double fastest = fastest_cost(found);
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.step_bytes, a.cost) < std::pair(b.step_bytes, b.cost);
  });
  // The Pareto front, thinned to steps of at least 10 % in memory.
  std::vector<Plan> plans;
  double best = std::numeric_limits<double>::max();
  int64_t last_bytes = 0;
  for (const Candidate& c : found) {
    if (c.cost >= best) continue;
    best = c.cost;
    if (!plans.empty() && c.step_bytes < last_bytes + last_bytes / 10 && c.cost > fastest) continue;
    last_bytes = c.step_bytes;
    plans.push_back(describe(request, c.schedule, c.cost / fastest));
  }
  return plans;
}

std::string gib(int64_t bytes) {
  return fmt::format("{:.3f} GiB", static_cast<double>(bytes) / static_cast<double>(1LL << 30));
}

std::string plan_table(const Plan& plan) {
  std::string text;
  const auto row = [&](std::string_view what, int64_t bytes, std::string_view note) {
    text += fmt::format("  {:<30} {:>12}   {}\n", what, gib(bytes), note);
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
      : cuda  ? "CUDA's context and kernels, and other processes"
              : "program, tokenizer, data, kernels");
  row("total", plan.total_bytes(), fmt::format("of {}", gib(plan.budget_bytes)));
  if (plan.pinned_bytes > 0)
    row("pinned host memory", plan.pinned_bytes, "besides: inputs wait there for the backward");
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
                                                                : "all"}});
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
          {"device", cuda_or_cpu(plan.device)},
          {"device_is_here", is_here(plan.device)},
          {"relative_time", plan.relative_time},
          {"tile", plan.schedule.tile},
          {"head", plan.schedule.head == HeadSchedule::by_rows ? "by_rows" : "by_blocks"},
          {"head_rows", plan.schedule.head_rows},
          {"segments", std::move(segments)}};
}

}  // namespace sluice
