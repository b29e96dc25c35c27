// The Gemma family at model level: windows, shared keys and values, prefix forests, generation with rings, what memory grows with.
#include <random>

#include "infer/generate.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "support/gemma_dense.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/plan.h"

namespace sluice::test {

namespace {

std::vector<int32_t> random_ids(int64_t count, uint32_t seed, int32_t vocabulary = 320) {
  std::mt19937 engine(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(engine() % static_cast<uint32_t>(vocabulary));
  return ids;
}

Schedule plain_schedule(const Model& model) {
  Schedule s = Schedule::uniform(model.config.num_layers, 1, Level::input);
  s.tile = row_chunk;
  return s;
}

// The last layer's output, before the final norm.
std::vector<float> last_hidden(Context& ctx, const Model& model, const std::vector<int32_t>& ids, const Spans& spans) {
  std::vector<float> out;
  const Schedule plan = plain_schedule(model);
  forward_hidden(ctx, model, {}, {.ids = ids, .spans = spans, .rows = {}, .targets = {}},
                 {.schedule = plan, .dtype = DType::f32}, [&](int64_t layer, Tensor x) {
                   if (layer == model.config.num_layers) out.assign(x.as<float>(), x.as<float>() + x.numel());
                 });
  return out;
}
std::vector<float> last_hidden(Context& ctx, const Model& model, const std::vector<int32_t>& ids) {
  return last_hidden(ctx, model, ids, Spans::one(static_cast<int64_t>(ids.size())));
}

std::vector<float> row_of(const std::vector<float>& matrix, const Model& model, int64_t row) {
  const int64_t C = model.config.hidden_size;
  return {matrix.begin() + row * C, matrix.begin() + (row + 1) * C};
}

// Logits of every row, [N][V].
DenseModel::Matrix all_logits(Context& ctx, const Model& model, const Adapter& adapter,
                              const std::vector<int32_t>& ids) {
  const auto N = static_cast<int64_t>(ids.size()), V = model.config.vocab_size;
  Buffer logits(DType::f32, {N, V});
  const Spans spans = Spans::one(N);
  const Schedule plan = plain_schedule(model);
  forward_hidden(ctx, model, adapter, {.ids = ids, .spans = spans, .rows = {}, .targets = {}},
                 {.schedule = plan, .dtype = DType::f32}, [&](int64_t layer, Tensor x) {
                   if (layer != model.config.num_layers) return;
                   ArenaScope scope(ctx.arena);
                   Tensor h = scope.like(x);
                   rmsnorm_forward(ctx, {.x = x,
                                         .weight = model.final_norm,
                                         .y = h,
                                         .eps = model.config.rms_norm_eps,
                                         .offset = model.config.norm_offset});
                   head_logits(ctx,
                               {.weight = model.head, .h = h, .softcap = model.config.final_softcap, .logits = logits});
                 });
  const std::vector<double> flat = to_double(logits.tensor);
  DenseModel::Matrix rows;
  for (int64_t n = 0; n < N; ++n) rows.emplace_back(flat.begin() + n * V, flat.begin() + (n + 1) * V);
  return rows;
}

double sum_loss(std::span<const float> logp, std::span<float> dlogp) {
  std::fill(dlogp.begin(), dlogp.end(), -1.0F);
  return -std::accumulate(logp.begin(), logp.end(), 0.0);
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

// A Gemma 3 1B that has shapes but no data.
void write_gemma3_1b_header(const fs::path& folder) {
  constexpr int64_t C = 1152, F = 6912, layers = 26, V = 262144, D = 256, heads = 4;
  Json header = Json::object();
  int64_t at = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t bytes = 2;
    for (int64_t extent : shape) bytes *= extent;
    header["model." + name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  };
  add("embed_tokens.weight", {V, C});
  add("norm.weight", {C});
  for (int64_t l = 0; l < layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    for (const char* norm :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      add(p + norm + ".weight", {C});
    }
    for (const char* norm : {"q_norm", "k_norm"}) add(p + "self_attn." + norm + ".weight", {D});
    add(p + "self_attn.q_proj.weight", {heads * D, C});
    add(p + "self_attn.k_proj.weight", {D, C});
    add(p + "self_attn.v_proj.weight", {D, C});
    add(p + "self_attn.o_proj.weight", {C, heads * D});
    add(p + "mlp.gate_proj.weight", {F, C});
    add(p + "mlp.up_proj.weight", {F, C});
    add(p + "mlp.down_proj.weight", {C, F});
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  const uint64_t length = text.size();
  std::memcpy(file.data(), &length, 8);
  fs::create_directories(folder);
  write_text(folder / "model.safetensors", file + text);
  write_text(folder / "config.json", Json({{"model_type", "gemma3_text"},
                                           {"hidden_size", C},
                                           {"intermediate_size", F},
                                           {"num_hidden_layers", layers},
                                           {"num_attention_heads", heads},
                                           {"num_key_value_heads", 1},
                                           {"head_dim", D},
                                           {"query_pre_attn_scalar", 256},
                                           {"sliding_window", 512},
                                           {"sliding_window_pattern", 6},
                                           {"rope_theta", 1e6},
                                           {"rms_norm_eps", 1e-6},
                                           {"vocab_size", V},
                                           {"max_position_embeddings", 32768},
                                           {"bos_token_id", 2},
                                           {"eos_token_id", 1}})
                                         .dump());
}

}  // namespace

TEST_CASE("FieldL15_dense: logits of every row equal a dense-mask computation in float64 at L = W-1, W, W+1, 2W+3") {
  for (const char* name : {"gemma3-like", "mistral-like"}) {
    CAPTURE(name);
    OracleModel m(name);
    const DenseModel dense(oracle_dir() / name);
    constexpr int64_t W = 8;
    for (int64_t L : {W - 1, W, W + 1, 2 * W + 3}) {
      CAPTURE(L);
      const std::vector<int32_t> ids = random_ids(L, 11 + static_cast<uint32_t>(L));
      const DenseModel::Matrix exact = dense.logits(ids);
      // The window matters here: without it the same rows are far off.
      const double without = max_difference(dense.logits(ids, false).back(), exact.back());
      if (L > W) CHECK(without > 0.01);
      else CHECK(without == 0);
      for (Isa isa : built_isas()) {
        TestContext ctx(isa);
        const DenseModel::Matrix ours = all_logits(ctx, *m.model, {}, ids);
        for (size_t n = 0; n < ours.size(); ++n) CHECK(max_difference(ours[n], exact[n]) < 3e-4);
      }
    }
  }
}

TEST_CASE("FieldL15_visibility: through one layer a token at distance W is invisible to the bit, one at W-1 is seen") {
  for (const char* name : {"gemma2-like", "gemma3-like", "gemma4-e4b-like", "gemma4-31b-like", "mistral-like"}) {
    CAPTURE(name);
    OracleModel m(name);
    m.model->config.num_layers = 1;
    m.model->layers.resize(1);
    m.model->config.per_layer_input_size = 0;  // its tensors are of all layers
    const int64_t W = m.model->layers[0].config.window;
    REQUIRE(W == 8);
    TestContext ctx(detect_isa());
    const std::vector<int32_t> ids = random_ids(40, 3);
    const std::vector<float> before = last_hidden(ctx, *m.model, ids);
    constexpr int64_t row = 37;
    for (const auto& [distance, seen] : {std::pair(W + 1, false), {W, false}, {W - 1, true}, {int64_t{1}, true}}) {
      CAPTURE(distance);
      std::vector<int32_t> changed = ids;
      int32_t& id = changed[static_cast<size_t>(row - distance)];
      id = (id + 1) % 320;
      const std::vector<float> after = last_hidden(ctx, *m.model, changed);
      CHECK((row_of(after, *m.model, row) != row_of(before, *m.model, row)) == seen);
    }
  }
}

TEST_CASE(
    "windows: a prompt with two children in one batch equals two sequences, forward and gradients, by position "
    "distance") {
  for (const char* name : {"gemma2-like", "gemma3-like", "gemma4-e4b-like", "gemma4-31b-like", "mistral-like"}) {
    CAPTURE(name);
    OracleModel m(name);
    TestContext ctx(detect_isa());
    const std::vector<int32_t> prompt = random_ids(13, 21), first = random_ids(15, 22), second = random_ids(6, 23);
    const auto P = static_cast<int64_t>(prompt.size());
    std::vector<int32_t> forest = prompt;
    for (const auto* child : {&first, &second}) forest.insert(forest.end(), child->begin(), child->end());
    const Spans spans({{-1, P}, {0, 15}, {0, 6}});
    const std::vector<float> together = last_hidden(ctx, *m.model, forest, spans);
    const Schedule plan = plain_schedule(*m.model);
    std::vector<float> apart(m.grads.size(), 0.0F);
    double loss_apart = 0;
    std::vector<int32_t> rows, targets;
    int64_t begin = P;
    for (const auto* child : {&first, &second}) {
      std::vector<int32_t> ids = prompt, own_rows, own_targets;
      ids.insert(ids.end(), child->begin(), child->end());
      const Spans one = Spans::one(static_cast<int64_t>(ids.size()));
      const std::vector<float> alone = last_hidden(ctx, *m.model, ids, one);
      for (size_t t = 0; t < child->size(); ++t) {
        const auto in_forest = row_of(together, *m.model, begin + static_cast<int64_t>(t));
        CHECK(relative_l2(to_double(in_forest), to_double(row_of(alone, *m.model, P + static_cast<int64_t>(t)))) <
              1e-5);
        if (t == 0) continue;
        own_rows.push_back(static_cast<int32_t>(P + static_cast<int64_t>(t)) - 1);
        rows.push_back(static_cast<int32_t>(begin + static_cast<int64_t>(t)) - 1);
        own_targets.push_back((*child)[t]);
        targets.push_back((*child)[t]);
      }
      std::fill(m.grads.begin(), m.grads.end(), 0.0F);
      loss_apart += forward_backward(ctx, *m.model, m.weights(), m.gradient(),
                                     {.ids = ids, .spans = one, .rows = own_rows, .targets = own_targets},
                                     {.schedule = plan, .dtype = DType::f32}, sum_loss);
      for (size_t i = 0; i < apart.size(); ++i) apart[i] += m.grads[i];
      begin += static_cast<int64_t>(child->size());
    }
    std::fill(m.grads.begin(), m.grads.end(), 0.0F);
    const double loss = forward_backward(ctx, *m.model, m.weights(), m.gradient(),
                                         {.ids = forest, .spans = spans, .rows = rows, .targets = targets},
                                         {.schedule = plan, .dtype = DType::f32}, sum_loss);
    CHECK(loss == doctest::Approx(loss_apart).epsilon(1e-5));
    CHECK(relative_l2(to_double(m.grads), to_double(apart)) < 1e-4);
  }
}

TEST_CASE("shared keys: donors and sharers in the same and in different segments give the same bytes" *
          doctest::test_suite("full")) {
  for (const char* name : {"gemma4-e4b-like", "gemma4-e2b-like"}) {
    CAPTURE(name);
    OracleModel m(name);
    const int64_t L = m.model->config.num_layers;
    int64_t first_sharer = 0, sharers = 0;
    for (const DecoderLayer& l : m.model->layers) sharers += l.config.kv_donor >= 0;
    while (m.model->layers[static_cast<size_t>(first_sharer)].config.kv_donor < 0) ++first_sharer;
    REQUIRE(sharers == L - first_sharer);
    OracleSample sample{.ids = random_ids(300, 5), .prompt_len = 150};
    for (DType dtype : {DType::f32, DType::bf16}) {
      std::vector<float> expected;
      // Cuts: none, between donors and sharers, between the donors, among the sharers, everywhere.
      for (const std::vector<int64_t>& cuts :
           std::vector<std::vector<int64_t>>{{L},
                                             {first_sharer, L},
                                             {first_sharer - 1, L},
                                             {first_sharer + 1, L},
                                             {first_sharer - 2, first_sharer, first_sharer + 2, L},
                                             {1, L - 1, L}}) {
        for (Level level : {Level::input, Level::attention, Level::all}) {
          Schedule plan = m.schedule();
          plan.segments.clear();
          int64_t begin = 0;
          for (int64_t end : cuts) {
            plan.segments.push_back({.begin = begin, .end = end, .level = level});
            begin = end;
          }
          CAPTURE(plan.segments.size());
          TestContext ctx(detect_isa());
          m.sft(ctx, {sample}, false, dtype, plan);
          if (expected.empty()) expected = m.grads;
          CHECK(m.grads == expected);
        }
      }
    }
  }
}

TEST_CASE("shared keys: dead tensors of sharing layers are not read, whatever their shape and values") {
  OracleModel m("gemma4-e4b-like");
  TemporaryFolder folder;
  const SafetensorsFile file((oracle_dir() / "gemma4-e4b-like" / "model.safetensors").string());
  const std::vector<uint16_t> poison(64, 0x7fc0);  // bf16 NaN
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& t : file.tensors()) {
    const auto at = t.name.find("layers.");
    const int64_t layer = at == std::string::npos ? 0 : std::atoll(t.name.c_str() + at + 7);
    const bool dead =
        layer >= 5 && (t.name.find("k_proj") != std::string::npos || t.name.find("v_proj") != std::string::npos ||
                       t.name.find("k_norm") != std::string::npos);
    if (dead) tensors.push_back({t.name, "BF16", {8, 8}, std::as_bytes(std::span(poison))});
    else tensors.push_back({t.name, t.dtype, t.shape, t.data});
  }
  write_safetensors((folder / "model.safetensors").string(), tensors);
  fs::copy_file(oracle_dir() / "gemma4-e4b-like" / "config.json", folder / "config.json");
  const auto poisoned = on_test_device(load_model((folder / "").string()));
  CHECK(poisoned->weight_bytes() == m.model->weight_bytes());
  TestContext ctx(detect_isa());
  const std::vector<int32_t> ids = random_ids(30, 8);
  CHECK(last_hidden(ctx, *poisoned, ids) == last_hidden(ctx, *m.model, ids));
}

TEST_CASE("generate: beyond the window, with rings, every greedy token is the argmax of the whole sequence's forward" *
          doctest::test_suite("full")) {
  ThreadPool pool(2);
  for (const char* name :
       {"gemma2-like", "gemma3-like", "gemma4-e4b-like", "gemma4-e2b-like", "gemma4-31b-like", "mistral-like"}) {
    CAPTURE(name);
    OracleModel m(name);
    TestContext ctx(detect_isa());
    Generator generator(pool, *m.model, {.max_sequences = 2, .max_tokens = 64, .dtype = DType::f32});
    std::vector<GenerateRequest> requests;
    for (int64_t length : {3, 7, 8, 9, 21})
      requests.push_back({.prompt = random_ids(length, 70 + static_cast<uint32_t>(length)), .max_new_tokens = 30});
    const auto results = generator.generate(requests, m.weights());
    int64_t compared = 0;
    for (size_t r = 0; r < requests.size(); ++r) {
      std::vector<int32_t> ids = requests[r].prompt;
      ids.insert(ids.end(), results[r].tokens.begin(), results[r].tokens.end());
      const DenseModel::Matrix logits = all_logits(ctx, *m.model, m.weights(), ids);
      for (size_t i = 0; i < results[r].tokens.size(); ++i) {
        std::vector<double> row = logits[requests[r].prompt.size() + i - 1];
        const auto best = std::max_element(row.begin(), row.end());
        const double top = *best;
        const auto token = static_cast<int32_t>(best - row.begin());
        *best = -1e30;
        if (top - *std::max_element(row.begin(), row.end()) < 1e-3) break;
        CHECK(results[r].tokens[i] == token);
        ++compared;
      }
    }
    CHECK(compared > 60);
  }
}

TEST_CASE("generate: a windowed layer's cache has the window's rows, a sharing layer's none") {
  for (const char* name : {"gemma3-like", "gemma4-e4b-like", "mistral-like"}) {
    CAPTURE(name);
    OracleModel m(name);
    const auto cache_bytes = [&](int64_t capacity) {
      Arena arena = Arena::counting(test_device());
      const KvCache cache(arena, *m.model, capacity, DType::bf16);
      return arena.used();
    };
    int64_t per_token = 0;  // of the full layers
    for (const DecoderLayer& l : m.model->layers) {
      if (l.config.window == 0 && l.config.kv_donor < 0) per_token += 2 * 2 * l.config.num_kv_heads * l.config.head_dim;
    }
    CHECK(cache_bytes(8192) - cache_bytes(4096) == 4096 * per_token);
    if (std::string(name) == "mistral-like") CHECK(per_token == 0);
  }
}

TEST_CASE(
    "FieldM2_slope: the step's memory grows by the same bytes a token from L to 2 L to 4 L, and is below 1 GiB at "
    "4096") {
  TemporaryFolder folder;
  write_gemma3_1b_header(folder / "model");
  const auto model = load_model(open_model((folder / "model").string(), {.allow_header_only = true}));
  const AdapterLayout layout(model->config, {.rank = 16});
  const PlanRequest request{.model = *model, .layout = layout, .device = test_device()};
  for (Level level : {Level::input, Level::all}) {
    Schedule plan = Schedule::uniform(model->config.num_layers, 1, level);
    plan.tile = 1024;
    std::vector<double> peaks;
    // Below, another phase of the step has the peak, with another slope.
    for (int64_t tokens : {16384, 32768, 65536}) {
      peaks.push_back(
          static_cast<double>(price_step(request, plan, {.spans = Spans::one(tokens), .num_targets = tokens - 1})));
    }
    const double near = (peaks[1] - peaks[0]) / 16384, far = (peaks[2] - peaks[1]) / 32768;
    MESSAGE("Gemma 3 1B, rank 16, level ", static_cast<int>(level), ": ", peaks[0] / (1 << 30),
            " GiB at 16384 tokens, then ", near, " and ", far, " bytes a token");
    CHECK(far <= 1.01 * near);
    if (!on_cuda()) CHECK(far >= 0.99 * near);  // the device's attention has scratch that grows up to a bound
  }
  // Every token a target, at the length at which logits alone would be 4 GiB in float32.
  Schedule lean = Schedule::uniform(model->config.num_layers, 1, Level::input);
  const int64_t bytes = price_step(request, lean, {.spans = Spans::one(4096), .num_targets = 4095});
  MESSAGE("at 4096 tokens: ", static_cast<double>(bytes) / (1 << 30), " GiB with ", lean.describe());
  CHECK(bytes < int64_t{1} << 30);
}

TEST_CASE("FieldM8_window: the scratch and the pairs of a windowed layer's backward double with the tokens") {
  const AttentionShape shape{.num_heads = 4, .num_kv_heads = 1, .head_dim = 256, .scale = 1, .window = 512};
  const auto scratch = [&](int64_t N) {
    Arena arena = Arena::counting(test_device());
    ThreadPool pool(2);
    Context ctx{.arena = arena, .pool = pool, .device = test_device()};
    const Spans spans = Spans::one(N);
    Tensor q = arena.tensor(DType::bf16, {N, 1024}), k = arena.tensor(DType::bf16, {N, 256}),
           lse = arena.tensor(DType::f32, {N, 4});
    Tensor dq = arena.tensor(DType::f32, {N, 1024}), dk = arena.tensor(DType::f32, {N, 256});
    const int64_t held = arena.used();
    attention_backward(ctx, {.shape = shape,
                             .spans = spans,
                             .q = q,
                             .k = k,
                             .v = k,
                             .o = q,
                             .lse = lse,
                             .do_ = q,
                             .dq = dq,
                             .dk = dk,
                             .dv = dk});
    return static_cast<double>(arena.peak() - held);
  };
  const double one = scratch(8192), two = scratch(16384), four = scratch(32768);
  MESSAGE("scratch: ", one / (1 << 20), ", ", two / (1 << 20), ", ", four / (1 << 20),
          " MiB at 8192, 16384, 32768 tokens");
  CHECK(two <= 2.02 * one);
  CHECK(four <= 2.02 * two);
  CHECK(Spans::one(32768).visible_pairs(512) < 2.1 * static_cast<double>(Spans::one(16384).visible_pairs(512)));
}

TEST_SUITE("full") {
  TEST_CASE(
      "FieldL14_grid: every segment size, level, tile and head schedule gives the loss and gradients of the plainest, "
      "at L = 64, 300, 1024, 4096") {
    for (const char* name : {"gemma3-like", "gemma4-e4b-like"}) {
      CAPTURE(name);
      OracleModel m(name);
      for (int64_t length : {64, 300, 1024, 4096}) {
        CAPTURE(length);
        const OracleSample sample{.ids = random_ids(length, 40), .prompt_len = length / 2};
        TestContext ctx(detect_isa());
        const double loss = m.sft(ctx, {sample}, false, DType::f32, m.schedule());
        const std::vector<float> grads = m.grads;
        // Every pair of segment size and level; along the diagonals tiles and head schedules take turns, so that each of them meets
        // every segment size and every level.
        const int64_t segments[] = {1, 2, m.model->config.num_layers};
        for (int s = 0; s < 3; ++s) {
          for (int l = 0; l < 3; ++l) {
            if (length == 4096 && (s != 1 || l != 1)) continue;  // one plan, for the time it takes
            Schedule plan = m.schedule(segments[s], static_cast<Level>(l));
            plan.tile = (s + l) % 2 == 0 ? 4 * row_chunk : row_chunk;
            plan.head = (s + l) % 3 == 0 ? HeadSchedule::by_blocks : HeadSchedule::by_rows;
            plan.head_rows = (s + l) % 3 == 1 ? 64 : 7;
            const std::string about = plan.describe();
            CAPTURE(about);
            const double other = m.sft(ctx, {sample}, false, DType::f32, plan);
            if (plan.head == HeadSchedule::by_rows) {
              CHECK(other == loss);
              CHECK(m.grads == grads);
            } else {
              CHECK(other == doctest::Approx(loss).epsilon(1e-6));
              CHECK(cosine(m.grads, grads) > 0.999999);
            }
          }
        }
      }
    }
  }
}

}  // namespace sluice::test
