#include "infer/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "core/device.h"
#include "infer/decode_step.h"
#include "infer/device_turn.h"
#include "ops/common/copy.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A long prompt runs through the layers in tiles of this many tokens.
constexpr int64_t prefill_tile = 1024;

SharedKv whole_kv(ArenaScope& scope, const DecoderLayer& layer, int64_t N, DType dtype) {
  const Shape shape{N, layer.config.num_kv_heads * layer.config.head_dim};
  return {.k = scope.tensor(dtype, shape), .v = scope.tensor(dtype, shape), .dk = {}, .dv = {}};
}

// The last `ring` tokens' rows into a ring, in at most two runs of rows.
void keep_last(Context& ctx, const SharedKv& from, const KvCache::Layer& to, int64_t N) {
  for (int64_t token = std::max<int64_t>(0, N - to.ring); token < N;) {
    const int64_t row = to.row_of(token), count = std::min(to.ring - row, N - token);
    scale_into(ctx, {.x = from.k.rows(token, count), .y = to.kv.k.rows(row, count)});
    scale_into(ctx, {.x = from.v.rows(token, count), .y = to.kv.v.rows(row, count)});
    token += count;
  }
}

// A prompt through all layers; keys and values land in the cache, the last row's logits in `logits` [1, V].
void prefill(Context& ctx, const Model& model, const Adapter& adapter, std::span<const int32_t> prompt, KvCache& cache,
             DType dtype, Tensor logits) {
  ArenaScope scope(ctx.arena);
  const auto N = static_cast<int64_t>(prompt.size());
  const Spans spans = Spans::one(N);
  LayerInputs inputs{.spans = &spans};
  inputs.tile = std::min(prefill_tile, (N + row_chunk - 1) / row_chunk * row_chunk);
  inputs.ids = scope.tensor(DType::i32, {N});
  copy_from_host(ctx, {.host = prompt.data(), .tensor = inputs.ids});
  std::vector<int32_t> positions(prompt.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  inputs.rope_tables = model.rope_tables(ctx, positions);
  Tensor x = scope.tensor(dtype, {N, model.config.hidden_size}), y = scope.like(x);
  model.embed(ctx, inputs.ids, x);
  Tensor u;
  if (model.config.per_layer_input_size > 0) {
    u = scope.tensor(dtype, {N, model.config.num_layers * model.config.per_layer_input_size});
    model.layer_inputs(ctx, inputs.ids, x, u);
  }
  std::vector<SharedKv> donors(model.layers.size());  // whole keys and values, as long as a later layer reads them
  for (int64_t l = 0; l < model.config.num_layers; ++l) {
    const DecoderLayer& layer = model.layers[static_cast<size_t>(l)];
    KvCache::Layer& kept = cache.layer(l);
    if (layer.config.is_donor && kept.ring > 0) donors[static_cast<size_t>(l)] = whole_kv(scope, layer, N, dtype);
    ArenaScope own(ctx.arena);
    SharedKv kv;  // the layer writes its keys and values where a donor would
    if (layer.config.kv_donor >= 0) kv = donors[static_cast<size_t>(layer.config.kv_donor)];
    else if (layer.config.is_donor) kv = donors[static_cast<size_t>(l)];
    else if (kept.ring > 0) kv = whole_kv(own, layer, N, dtype);
    if (kv.k.empty()) kv = {.k = kept.kv.k.rows(0, N), .v = kept.kv.v.rows(0, N), .dk = {}, .dv = {}};
    GraphCapture graph(ctx, N);
    layer.forward(ctx, inputs, adapter, x, y, {}, &kv, u);
    if (layer.config.kv_donor < 0 && kept.ring > 0) keep_last(ctx, kv, kept, N);
    graph.launch();
    std::swap(x, y);
  }
  Tensor h = scope.tensor(dtype, {1, model.config.hidden_size});
  rmsnorm_forward(ctx, {.x = x.rows(N - 1, 1),
                        .weight = model.final_norm,
                        .y = h,
                        .eps = model.config.rms_norm_eps,
                        .offset = model.config.norm_offset});
  head_logits(ctx, {.weight = model.head, .h = h, .softcap = model.config.final_softcap, .logits = logits});
}

float top_gap(std::span<const float> logits) {
  float best = -INFINITY, second = -INFINITY;
  for (float z : logits) {
    if (z > best) second = best, best = z;
    else if (z > second) second = z;
  }
  return best - second;
}

// Prices what a call of generate() takes, once for each adapter's layout and each length of prompt.
class GeneratorMemory {
 public:
  GeneratorMemory(ThreadPool& pool, const Model& model, const GeneratorOptions& options)
      : pool_(pool), model_(model), options_(options) {}

  std::vector<KvCache> caches(Arena& arena) const {
    std::vector<KvCache> caches;
    for (int64_t i = 0; i < options_.max_sequences; ++i)
      caches.emplace_back(arena, model_, options_.max_tokens, options_.dtype);
    return caches;
  }

  // Prompts of these lengths, and steps of every number of sequences as late as they can come.
  int64_t bytes(const Adapter& adapter, const std::vector<int64_t>& prompts) {
    std::map<int64_t, int64_t>& of_prompt = priced_[shape_of(adapter)];
    int64_t most = 0;
    for (int64_t length : prompts) {
      const auto [at, is_new] = of_prompt.try_emplace(length);
      if (is_new) at->second = price(adapter, length);
      most = std::max(most, at->second);
    }
    const auto [steps, is_new] = of_prompt.try_emplace(0);
    if (is_new) steps->second = price(adapter, 0);
    return std::max(most, steps->second);
  }

  int64_t planned_bytes() {
    std::vector<int64_t> prompts = options_.prompts;
    if (prompts.empty()) prompts.push_back(options_.max_tokens);
    for (int64_t& length : prompts)
      length = std::clamp<int64_t>(length, 1, std::max<int64_t>(1, options_.max_tokens - 1));
    int64_t most = bytes({}, prompts);
    for (const AdapterLayout& layout : options_.adapters) {
      Arena elsewhere = Arena::counting(model_.device);
      const Tensor norms = layout.num_norms() > 0 ? elsewhere.tensor(DType::f32, {layout.num_norms()}) : Tensor{};
      most = std::max(most, bytes({layout, elsewhere.tensor(DType::f32, {layout.size()}), norms}, prompts));
    }
    return most;
  }

 private:
  // Layer, module and rank of every entry, and whether it is DoRA: what memory depends on.
  static std::vector<int64_t> shape_of(const Adapter& adapter) {
    if (adapter.empty()) return {};
    std::vector<int64_t> shape = {adapter.layout().num_norms()};
    for (const AdapterLayout::Entry& e : adapter.layout().entries())
      shape.insert(shape.end(), {e.layer, static_cast<int64_t>(e.module), e.rank});
    return shape;
  }

  // `prompt` 0: the steps.
  int64_t price(const Adapter& adapter, int64_t prompt) const {
    Arena arena = Arena::counting(model_.device);
    std::vector<KvCache> held = caches(arena);
    Context ctx{.arena = arena, .pool = pool_, .device = model_.device, .isa = options_.isa};
    Tensor logits = arena.tensor(DType::f32, {options_.max_sequences, model_.config.vocab_size});
    if (prompt > 0) {
      prefill(ctx, model_, adapter, std::vector<int32_t>(static_cast<size_t>(prompt)), held.front(), options_.dtype,
              logits.rows(0, 1));
      return arena.peak();
    }
    std::vector<KvCache*> running;
    for (KvCache& cache : held) {
      cache.set_length(options_.max_tokens - 1);
      running.push_back(&cache);
      decode_step(ctx, model_, adapter, std::vector<int32_t>(running.size()), running,
                  logits.rows(0, static_cast<int64_t>(running.size())));
    }
    return arena.peak();
  }

  ThreadPool& pool_;
  const Model& model_;
  const GeneratorOptions& options_;
  std::map<std::vector<int64_t>, std::map<int64_t, int64_t>> priced_;  // by shape and length
};

}  // namespace

struct Generator::Impl {
  struct Running {
    size_t request = 0;
    KvCache* cache = nullptr;
    int32_t next = 0;              // sampled, not yet run
    std::vector<int32_t> history;  // prompt and output
  };

  Impl(ThreadPool& p, const Model& m, const GeneratorOptions& o)
      : pool(p),
        model(m),
        options(o),
        memory(p, m, options),
        arena(Arena::counting(m.device)),
        host(Arena::counting(Device::cpu())) {
    take(memory.planned_bytes());
    const int64_t count = options.max_sequences * model.config.vocab_size, bytes = count * size_of(DType::f32);
    host = model.device.type == DeviceType::cuda ? Arena::pinned(bytes) : Arena::allocate(model.device, bytes);
    host_logits = host.array<float>(count);
  }

  // An arena of at least `bytes`, while nothing runs.
  void take(int64_t bytes) {
    if (!arena.is_counting() && bytes <= arena.capacity()) return;
    caches.clear();
    arena = Arena::counting(model.device);  // the old one goes before the new one comes
    arena = Arena::allocate(model.device, bytes);
    caches = memory.caches(arena);
  }

  void take_for(std::span<const GenerateRequest> requests, const Adapter& adapter) {
    std::vector<int64_t> prompts;
    for (const GenerateRequest& r : requests) prompts.push_back(static_cast<int64_t>(r.prompt.size()));
    take(memory.bytes(adapter, prompts));
  }

  void require(const GenerateRequest& r) const {
    require_valid(r.sampler);
    check(!r.prompt.empty(), ErrorCode::bad_config, "the prompt is empty; give at least one token");
    check(static_cast<int64_t>(r.prompt.size()) < options.max_tokens, ErrorCode::bad_config,
          fmt::format("the prompt has {} tokens and {} fit (prompt and output); raise --max-kv-size or shorten it",
                      r.prompt.size(), options.max_tokens));
  }

  ThreadPool& pool;
  const Model& model;
  GeneratorOptions options;
  GeneratorMemory memory;
  Arena arena, host;
  std::vector<KvCache> caches;
  float* host_logits = nullptr;  // [max_sequences, V], which copies from the device reach at full speed
};

Generator::Generator(ThreadPool& pool, const Model& model, const GeneratorOptions& options)
    : impl_(std::make_unique<Impl>(pool, model, options)) {}
Generator::~Generator() = default;

int64_t Generator::arena_bytes() const { return impl_->arena.capacity(); }
int64_t Generator::arena_peak() const { return impl_->arena.peak(); }

int64_t Generator::planned_bytes(ThreadPool& pool, const Model& model, const GeneratorOptions& options) {
  return GeneratorMemory(pool, model, options).planned_bytes();
}

std::vector<GenerateResult> Generator::generate(std::span<const GenerateRequest> requests, const Adapter& adapter,
                                                const OnToken& on_token) {
  Impl& s = *impl_;
  for (const GenerateRequest& r : requests) s.require(r);
  s.take_for(requests, adapter);
  Context ctx{.arena = s.arena, .pool = s.pool, .device = s.model.device, .isa = s.options.isa};
  ArenaScope scope(s.arena);
  const int64_t V = s.model.config.vocab_size;
  Tensor logits = scope.tensor(DType::f32, {s.options.max_sequences, V});
  std::vector<GenerateResult> results(requests.size());
  std::vector<KvCache*> free;
  for (KvCache& cache : s.caches) free.push_back(&cache);
  std::vector<Impl::Running> running;
  size_t waiting = 0;

  // Takes the next token from a row of logits; false when the sequence has ended.
  const auto advance = [&](Impl::Running& r, std::span<float> row) {
    const GenerateRequest& request = requests[r.request];
    GenerateResult& result = results[r.request];
    const float gap = top_gap(row);
    check(std::isfinite(gap), ErrorCode::device, "the logits are not finite; the base or the adapter is damaged");
    result.smallest_gap = result.tokens.empty() ? gap : std::min(result.smallest_gap, gap);
    r.next = sample(row, r.history, request.sampler, r.request);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), r.next) != request.stop_ids.end()) {
      result.finish = FinishReason::stop;
      return false;
    }
    result.tokens.push_back(r.next);
    r.history.push_back(r.next);
    if (on_token && !on_token(r.request, r.next)) {
      result.finish = FinishReason::cancelled;
      return false;
    }
    const auto total = static_cast<int64_t>(r.history.size());
    return static_cast<int64_t>(result.tokens.size()) < request.max_new_tokens && total < s.options.max_tokens;
  };

  while (waiting < requests.size() || !running.empty()) {
    while (!free.empty() && waiting < requests.size()) {
      const auto start = std::chrono::steady_clock::now();
      const GenerateRequest& request = requests[waiting];
      Impl::Running r{.request = waiting, .cache = free.back(), .history = request.prompt};
      Tensor row = logits.rows(0, 1);
      {
        const auto turn = device_turn(s.model.device);
        prefill(ctx, s.model, adapter, request.prompt, *r.cache, s.options.dtype, row);
        r.cache->set_length(static_cast<int64_t>(request.prompt.size()));
        copy_to_host(ctx, {.tensor = row, .host = s.host_logits});
      }
      results[waiting].prefill_seconds = seconds_since(start);
      ++waiting;
      if (request.max_new_tokens > 0 && advance(r, {s.host_logits, static_cast<size_t>(V)})) {
        free.pop_back();
        running.push_back(std::move(r));
      }
    }
    if (running.empty()) continue;
    const auto start = std::chrono::steady_clock::now();
    std::vector<int32_t> tokens;
    std::vector<KvCache*> caches;
    for (const Impl::Running& r : running) {
      tokens.push_back(r.next);
      caches.push_back(r.cache);
    }
    Tensor rows = logits.rows(0, static_cast<int64_t>(running.size()));
    {
      const auto turn = device_turn(s.model.device);
      decode_step(ctx, s.model, adapter, tokens, caches, rows);
      copy_to_host(ctx, {.tensor = rows, .host = s.host_logits});
    }
    const double spent = seconds_since(start);
    std::vector<Impl::Running> still;
    for (size_t i = 0; i < running.size(); ++i) {
      results[running[i].request].decode_seconds += spent;
      if (advance(running[i], {s.host_logits + i * static_cast<size_t>(V), static_cast<size_t>(V)}))
        still.push_back(std::move(running[i]));
      else free.push_back(running[i].cache);
    }
    running = std::move(still);
  }
  return results;
}

GenerateResult Generator::generate(const GenerateRequest& request, const Adapter& adapter, const OnToken& on_token) {
  return generate(std::span(&request, 1), adapter, on_token).front();
}

}  // namespace sluice
