#include "train/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "core/bytes.h"

namespace sluice {

namespace {

// What the backward finds of one layer, and where.
struct Keep {
  Level level;
  bool host;
};
constexpr std::array<Keep, 5> keeps = {{{Level::input, false},
                                        {Level::attention, false},
                                        {Level::all, false},
                                        {Level::attention, true},
                                        {Level::all, true}}};
enum : uint8_t { input, attention, all, host_attention, host_all };
using Choice = std::vector<uint8_t>;  // for each layer an index into keeps

// What a device does to a step's time; only ratios matter to the choice.
struct Rates {
  // Share of the large matrix product's rate that a part of the step reaches.
  double linear, attention_forward, attention_backward;
  // What a tile costs besides its rows, in rows of a matrix product: a plain weight's launches, and a quantised one's dequantisation.
  double plain_tile_rows, quantised_tile_rows;
  // Multiply-adds in the time of a byte: of the passes over activations (0: in `linear`), and between device and host.
  double per_byte, per_host_byte;
};
// Measured by bench/ on two cores (AVX512-BF16) and on one H200: 395 T multiply-adds and 3.6 TB of activations a second, 46 GB to or from the host
// (55 alone; blocks wait for each other).
Rates rates_of(Device device) {
  if (device.type == DeviceType::cuda)
    return {.linear = 0.85,
            .attention_forward = 0.72,
            .attention_backward = 0.6,
            .plain_tile_rows = 300,
            .quantised_tile_rows = 600,
            .per_byte = 110,
            .per_host_byte = 8500};
  return {.linear = 0.85,
          .attention_forward = 0.55,
          .attention_backward = 0.55,
          .plain_tile_rows = 40,
          .quantised_tile_rows = 40,
          .per_byte = 0,
          .per_host_byte = 0};
}

// Copies beside the computation slow it a little, and pinned memory is somebody's: this share of their time is counted, so that they must be
// worth it.
constexpr double copy_share = 0.05;

int64_t layer_weights(const DecoderLayer& l) {
  int64_t count = 0;
  for (const LoraLinear* linear :
       {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_projection}) {
    count += linear->weight.rows * linear->weight.cols;
  }
  return count;
}

// Numbers a token that the forward's passes beside the products and attention read and write: norms, residuals, RoPE, the gate, adapters.
int64_t passed_numbers(const DecoderLayer& l) {
  const LayerConfig& c = l.config;
  return (l.model->post_norms ? 17 : 11) * l.model->hidden_size + (3 * c.num_heads + 2 * c.num_kv_heads) * c.head_dim +
         4 * c.intermediate_size;
}

// Time of one step in units of multiply-adds at the large matrix product's rate, without the head, which no level changes.
class CostModel {
 public:
  explicit CostModel(const PlanRequest& request, const BatchShape& shape)
      : request_(request),
        rates_(rates_of(request.device)),
        tokens_(shape.spans.num_tokens()),
        first_adapted_(request.layout.entries().front().layer) {
    const auto tokens = static_cast<double>(tokens_);
    for (const DecoderLayer& l : request.model.layers) {
      const double pairs = static_cast<double>(shape.spans.visible_pairs(l.config.window));
      attention_.push_back(2 * pairs * static_cast<double>(l.config.num_heads * l.config.head_dim));
      passes_.push_back(static_cast<double>(size_of(request.dtype) * passed_numbers(l)) * tokens * rates_.per_byte);
    }
  }

  int64_t first_adapted() const { return first_adapted_; }  // the backward stops above it

  // pinned_bytes: what goes to host memory and comes back.
  double layers(const Choice& choice, int64_t tile, int64_t pinned_bytes) const {
    Phases time;
    for (size_t l = 0; l < choice.size(); ++l) add_layer(time, l, keeps[choice[l]].level, tile);
    return total(time, pinned_bytes);
  }

  double segments(const Schedule& schedule, int64_t pinned_bytes) const {
    Phases time;
    for (const Segment& s : schedule.segments) {
      for (int64_t l = s.begin; l < s.end; ++l) {
        const auto i = static_cast<size_t>(l);
        const bool last = l + 1 == s.end;
        add_layer(time, i, s.size() == 1 || !last ? s.level : Level::input, schedule.tile);
        if (s.size() > 1 && !last && s.end > first_adapted_)
          time.backward += forward(i, schedule.tile) + attention_forward(i);  // the redo inside a segment
      }
    }
    return total(time, pinned_bytes);
  }

 private:
  struct Phases {
    double forward = 0, backward = 0;
  };

  void add_layer(Phases& time, size_t l, Level kept, int64_t tile) const {
    const double once = forward(l, tile);
    time.forward += once + attention_forward(l);
    if (static_cast<int64_t>(l) < first_adapted_) return;
    time.backward += once + 1.5 * passes_[l] + 2.5 * attention_[l] / rates_.attention_backward;
    const Weight& down = request_.model.layers[l].down.weight;
    if (kept != Level::all) time.backward += once - linear(static_cast<double>(down.rows * down.cols), tile);
    if (kept == Level::input) time.backward += attention_forward(l);
  }

  // Either phase takes as long as its copies at least.
  double total(const Phases& time, int64_t pinned_bytes) const {
    const double copies = static_cast<double>(pinned_bytes) * rates_.per_host_byte;
    return std::max(time.forward, copies) + std::max(time.backward, copies) + 2 * copy_share * copies;
  }

  double forward(size_t l, int64_t tile) const {
    return linear(static_cast<double>(layer_weights(request_.model.layers[l])), tile) + passes_[l];
  }
  double attention_forward(size_t l) const { return attention_[l] / rates_.attention_forward; }

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
  int64_t tokens_, first_adapted_;
  std::vector<double> attention_, passes_;
};

Schedule with_choice(const Schedule& like, const Choice& choice) {
  Schedule schedule = like;
  schedule.segments.clear();
  for (size_t l = 0; l < choice.size(); ++l) {
    const auto begin = static_cast<int64_t>(l);
    const Keep keep = keeps[choice[l]];
    schedule.segments.push_back({.begin = begin, .end = begin + 1, .level = keep.level, .host = keep.host});
  }
  return schedule;
}

// The searched part of memory, additive over layers: what a layer keeps, and what each phase needs above what is kept. A run on a counting arena for
// each way to keep fills it, and every assignment of ways to layers is then priced by addition.
struct PhaseTable {
  using Row = std::array<int64_t, keeps.size()>;
  int64_t below = 0;                   // held before the first layer's kept input, without blocks for host layers
  std::vector<Row> kept;               // by layer: input and saved tensors
  std::vector<Row> forward, backward;  // peaks above what the forward held before the layer
  std::vector<Row> host;               // what the layer keeps in host memory
  int64_t inputs_away = 0;             // pinned memory that inputs take

  int64_t peak(const Choice& choice, int64_t head) const {
    std::array<int64_t, keeps.size()> hosted{}, block{};
    for (size_t l = 0; l < choice.size(); ++l) {
      if (!keeps[choice[l]].host) continue;
      ++hosted[choice[l]];
      block[choice[l]] = std::max(block[choice[l]], host[l][choice[l]]);
    }
    int64_t held = below, worst = 0;
    for (size_t way = 0; way < keeps.size(); ++way) held += std::min<int64_t>(hosted[way], 2) * block[way];
    std::vector<int64_t> held_at(choice.size());
    for (size_t l = 0; l < choice.size(); ++l) {
      held_at[l] = held;
      worst = std::max(worst, held + forward[l][choice[l]]);
      held += kept[l][choice[l]];
    }
    worst = std::max(worst, held + head);
    for (size_t l = 0; l < choice.size(); ++l) worst = std::max(worst, held_at[l] + backward[l][choice[l]]);
    return worst;
  }

  int64_t pinned(const Choice& choice) const {
    int64_t bytes = inputs_away;
    std::array<int64_t, keeps.size()> hosted{};
    for (size_t l = choice.size(); l-- > 0;) {
      if (keeps[choice[l]].host && ++hosted[choice[l]] > 2) bytes += host[l][choice[l]];
    }
    return bytes;
  }
};

PhaseTable phase_table(const PlanRequest& request, const Schedule& like, const BatchShape& shape) {
  const auto L = static_cast<size_t>(request.model.config.num_layers);
  PhaseTable table;
  for (std::vector<PhaseTable::Row>* rows : {&table.kept, &table.forward, &table.backward, &table.host})
    rows->resize(L);
  for (size_t way = 0; way < keeps.size(); ++way) {
    if (keeps[way].host && !like.offload) continue;
    std::vector<PhaseRecord> log;
    int64_t pinned = 0;
    price_step(request, with_choice(like, Choice(L, static_cast<uint8_t>(way))), shape, &log, &pinned);
    std::vector<int64_t> held(L + 1);  // by the forward before each layer, and by the head
    for (const PhaseRecord& r : log) {
      const auto l = static_cast<size_t>(r.segment);
      if (r.phase == Phase::forward) {
        held[l] = r.held_bytes;
        table.forward[l][way] = r.peak_bytes - r.held_bytes;
      } else if (r.phase == Phase::head) {
        held[L] = r.held_bytes;
      } else {
        table.backward[l][way] = r.peak_bytes - held[l];
      }
    }
    if (way == input) table.below = held[0], table.inputs_away = pinned;
    for (size_t l = 0; l < L; ++l) {
      table.kept[l][way] = held[l + 1] - held[l];
      if (!keeps[way].host) continue;
      Arena arena = Arena::counting(request.device);
      DecoderLayer::Saved(arena, request.model.layers[l], shape.spans.num_tokens(), request.dtype, keeps[way].level,
                          unread_adapter(request.layout));
      table.host[l][way] = arena.used();
    }
  }
  return table;
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

// A way of the head: its memory and its time.
struct Head {
  Schedule like;
  int64_t bytes = 0;
  double cost = 0;
};

std::vector<Head> ways_of_head(const PlanRequest& request, const BatchShape& shape) {
  const bool cuda = request.device.type == DeviceType::cuda;
  std::vector<int64_t> head_rows = cuda ? std::vector<int64_t>{2048, 4096, 8192} : std::vector<int64_t>{64, 128, 256};
  if (request.head_rows > 0) head_rows = {request.head_rows};
  const Rates rates = rates_of(request.device);
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
  return heads;
}

std::vector<int64_t> tiles_of(const PlanRequest& request, const BatchShape& shape) {
  if (request.tile > 0) return {request.tile};
  const bool cuda = request.device.type == DeviceType::cuda;
  const int64_t whole = (shape.spans.num_tokens() + row_chunk - 1) / row_chunk * row_chunk;
  const int64_t smallest = cuda ? 1024 : row_chunk, largest = cuda ? 32768 : 4096;
  std::vector<int64_t> tiles;
  for (int64_t tile = smallest; tile < whole && tile <= largest; tile *= 2) tiles.push_back(tile);
  tiles.push_back(std::min<int64_t>(whole, largest));
  return tiles;
}

// Sizes of segments of several layers that the search tries; `wanted` > 0: that one alone.
std::vector<int64_t> segment_sizes(int64_t num_layers, int64_t wanted) {
  if (wanted == 1) return {};
  if (wanted > 1) return {std::min(wanted, num_layers)};
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size <= num_layers; size = size < 4 ? size + 1 : size * 3 / 2) sizes.push_back(size);
  return sizes;
}

// Which assignments of ways to layers are looked at: the last layers keep everything on the device, since their memory is the first to be given back; of the others
// `hosted`, evenly spread so that copies have time, keep everything in host memory; of what is left the last keep attention on the device, the rest what `rest` says.
// Layers below `first`, which no backward reaches, keep their inputs alone.
void for_each_choice(int64_t num_layers, int64_t first, bool offload, const std::function<void(const Choice&)>& visit) {
  const int64_t L = num_layers;
  // With a third dimension to search, long models are looked at in larger steps; the last is shorter.
  const int64_t step = offload ? std::max<int64_t>(1, L / 16) : 1;
  for (uint8_t rest : {input, host_attention}) {
    if (rest == host_attention && !offload) continue;
    for (int64_t whole = 0; whole <= L - first;
         whole = whole == L - first ? L + 1 : std::min(whole + step, L - first)) {
      const int64_t count = L - whole - first, most = offload ? count : 0;
      for (int64_t hosted = 0; hosted <= most; hosted = hosted == most ? L + 1 : std::min(hosted + step, most)) {
        Choice choice(static_cast<size_t>(L), rest);
        for (int64_t l = 0; l < L; ++l) {
          auto& way = choice[static_cast<size_t>(l)];
          const int64_t i = l - first;
          if (i < 0) way = input;
          else if (i >= count) way = all;
          else if ((i + 1) * hosted / count > i * hosted / count) way = host_all;
        }
        visit(choice);
        for (int64_t l = first + count; l-- > first;) {
          auto& way = choice[static_cast<size_t>(l)];
          if (way != rest) continue;
          way = attention;
          visit(choice);
        }
      }
    }
  }
}

// The candidates that no other beats.
class Front {
 public:
  void add(Candidate candidate) {
    found_.push_back(std::move(candidate));
    if (found_.size() >= 2 * after_last_ + 1000) prune();
  }
  std::vector<Candidate> take() {
    prune();
    return std::move(found_);
  }

 private:
  void prune() {
    std::sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.held_bytes(), a.cost) < std::pair(b.held_bytes(), b.cost);
    });
    size_t count = 0;
    for (Candidate& c : found_) {
      if (count > 0 && c.cost >= found_[count - 1].cost) continue;
      if (&c != &found_[count]) found_[count] = std::move(c);
      ++count;
    }
    found_.resize(count);
    after_last_ = count;
  }

  std::vector<Candidate> found_;
  size_t after_last_ = 0;
};

}  // namespace

Adapter unread_adapter(const AdapterLayout& layout) {
  const auto unread = [](int64_t count) {
    return Tensor{.data = reinterpret_cast<void*>(Arena::alignment), .dtype = DType::f32, .shape = {count}};
  };
  const int64_t norms = layout.num_norms();
  return {layout, unread(layout.size()), norms > 0 ? unread(norms) : Tensor{}};
}

const BatchShape& largest_batch(const PlanRequest& request) {
  return *std::max_element(request.train.begin(), request.train.end(), [](const BatchShape& a, const BatchShape& b) {
    return std::pair(a.spans.num_tokens(), a.num_targets) < std::pair(b.spans.num_tokens(), b.num_targets);
  });
}

std::vector<Candidate> search_schedules(const PlanRequest& request) {
  const BatchShape& shape = largest_batch(request);
  const CostModel cost(request, shape);
  const int64_t L = request.model.config.num_layers;
  const auto allowed = [&](Level level) {
    return request.level.empty() || request.level == (level == Level::input       ? "input"
                                                      : level == Level::attention ? "attention"
                                                                                  : "all");
  };
  const bool cuda = request.device.type == DeviceType::cuda;
  check(cuda || request.offload != "true", ErrorCode::bad_config,
        "offload: true needs device: cuda; on the CPU leave it out, the plan recomputes instead");
  std::vector<bool> offloads = {false};
  if (cuda && request.offload != "false") offloads.push_back(true);
  if (request.offload == "true") offloads = {true};

  std::vector<Head> heads = ways_of_head(request, shape);
  Front front;
  int64_t least_pinned = std::numeric_limits<int64_t>::max();
  for (int64_t tile : tiles_of(request, shape))
    for (bool offload : offloads) {
      for (Head& head : heads) head.like.tile = tile, head.like.offload = offload;
      const Schedule& like = heads.front().like;
      const auto within_host = [&](int64_t pinned) {
        least_pinned = std::min(least_pinned, pinned);
        return pinned <= request.host_budget_bytes;
      };
      if (request.segment_size <= 1) {
        const PhaseTable table = phase_table(request, like, shape);
        for_each_choice(L, cost.first_adapted(), offload, [&](const Choice& choice) {
          if (!std::all_of(choice.begin() + cost.first_adapted(), choice.end(),
                           [&](uint8_t way) { return allowed(keeps[way].level); }))
            return;
          const int64_t pinned = table.pinned(choice);
          if (!within_host(pinned)) return;
          const double layers_cost = cost.layers(choice, like.tile, pinned);
          for (const Head& head : heads) {
            front.add({.schedule = with_choice(head.like, choice),
                       .step_bytes = table.peak(choice, head.bytes),
                       .pinned_bytes = pinned,
                       .cost = layers_cost + head.cost});
          }
        });
      }
      for (int64_t size : segment_sizes(L, request.segment_size)) {
        for (Level level : {Level::input, Level::attention, Level::all}) {
          if (!allowed(level)) continue;
          Schedule schedule = like;
          schedule.segments = Schedule::uniform(L, size, level).segments;
          std::vector<PhaseRecord> log;
          int64_t pinned = 0;
          price_step(request, schedule, shape, &log, &pinned);
          if (!within_host(pinned)) continue;
          const double layers_cost = cost.segments(schedule, pinned);
          for (const Head& head : heads) {
            schedule.head_rows = head.like.head_rows;
            front.add({.schedule = schedule,
                       .step_bytes = peak_with_head(log, head.bytes),
                       .pinned_bytes = pinned,
                       .cost = layers_cost + head.cost});
          }
        }
      }
    }
  std::vector<Candidate> found = front.take();
  check(!found.empty(), ErrorCode::out_of_memory,
        fmt::format(
            "offload: true takes {} of pinned host memory at least, and {} are allowed; give more host_memory, or "
            "offload: auto",
            format_bytes(least_pinned), format_bytes(request.host_budget_bytes)));
  return found;
}

}  // namespace sluice
