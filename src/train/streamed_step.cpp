#include "train/streamed_step.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "core/device.h"
#include "ops/common/aside.h"
#include "ops/common/copy.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

class Stream {
 public:
  Stream(Context& ctx, const Model& model, const Adapter& adapter, const StepBatch& batch, const StepSettings& settings)
      : ctx_(ctx),
        model_(model),
        adapter_(adapter),
        batch_(batch),
        settings_(settings),
        N_(batch.spans.num_tokens()),
        C_(model.config.hidden_size) {
    SLUICE_ASSERT(static_cast<int64_t>(batch.ids.size()) == N_);
    inputs_.spans = &batch.spans;
    inputs_.tile = settings.schedule.tile;
    inputs_.dropout = settings.dropout;
    inputs_.ids = ctx.arena.tensor(DType::i32, {N_});
    copy_from_host(ctx, {.host = batch.ids.data(), .tensor = inputs_.ids});
    std::vector<int32_t> positions;
    for (int64_t s = 0; s < batch.spans.size(); ++s) {
      for (int64_t i = 0; i < batch.spans[s].length; ++i)
        positions.push_back(static_cast<int32_t>(batch.spans[s].start_position + i));
    }
    inputs_.rope_tables = model.rope_tables(ctx, positions);
    const int64_t P = model.config.per_layer_input_size;
    if (P > 0) layer_inputs_ = ctx.arena.tensor(settings.dtype, {N_, model.config.num_layers * P});
    rows_ = to_device(batch.rows);
    targets_ = to_device(batch.targets);
  }

  int64_t num_targets() const { return static_cast<int64_t>(batch_.rows.size()); }
  Tensor activations() { return ctx_.arena.tensor(settings_.dtype, {N_, C_}); }
  void embed(Tensor x) {
    model_.embed(ctx_, inputs_.ids, x);
    if (!layer_inputs_.empty()) model_.layer_inputs(ctx_, inputs_.ids, x, layer_inputs_);
  }

  void layer_forward(int64_t l, Tensor x, Tensor y, const DecoderLayer::Saved& saved) {
    GraphCapture graph(ctx_, N_);
    layer(l).forward(ctx_, inputs_, adapter_, x, y, saved, donor_of(l), layer_inputs_);
    graph.launch();
  }

  void layer_backward(int64_t l, const Adapter& grads, Tensor x, const DecoderLayer::Saved& saved, Tensor d,
                      bool need_dx) {
    GraphCapture graph(ctx_, N_);
    layer(l).backward(ctx_, inputs_, adapter_, grads, x, saved, d, need_dx, donor_of(l), layer_inputs_);
    graph.launch();
  }

  DecoderLayer::Saved save(int64_t l, Level level) { return save_in(ctx_.arena, l, level); }
  DecoderLayer::Saved save_in(Arena& arena, int64_t l, Level level) {
    return {arena, layer(l), N_, settings_.dtype, level, adapter_};
  }

  // Room for what donor layers hand to later ones, for the whole step.
  void share_kv(bool with_gradients) {
    donors_.resize(model_.layers.size());
    for (size_t l = 0; l < donors_.size(); ++l) {
      const LayerConfig& c = model_.layers[l].config;
      if (!c.is_donor) continue;
      const Shape shape{N_, c.num_kv_heads * c.head_dim};
      donors_[l].k = ctx_.arena.tensor(settings_.dtype, shape);
      donors_[l].v = ctx_.arena.tensor(settings_.dtype, shape);
      if (!with_gradients) continue;
      donors_[l].dk = ctx_.arena.tensor(DType::f32, shape);
      donors_[l].dv = ctx_.arena.tensor(DType::f32, shape);
      zero(ctx_, {.tensor = donors_[l].dk});
      zero(ctx_, {.tensor = donors_[l].dv});
    }
  }

  // Head on the rows that carry a target. With `loss`, d becomes d(loss)/d(hidden) of all N tokens.
  std::vector<float> head(Tensor x, const LossFunction* loss, Tensor d, double* total) {
    const int64_t M = num_targets();
    std::vector<float> logp(static_cast<size_t>(M));
    ArenaScope scope(ctx_.arena);
    Tensor picked = scope.tensor(settings_.dtype, {M, C_}), h = scope.like(picked);
    gather_rows(ctx_, {.x = x, .index = rows_, .y = picked});
    rmsnorm_forward(ctx_, {.x = picked,
                           .weight = model_.final_norm,
                           .y = h,
                           .eps = model_.config.rms_norm_eps,
                           .offset = model_.config.norm_offset});
    Tensor logp_d = scope.tensor(DType::f32, {M}), lse = scope.like(logp_d), hit = scope.like(logp_d);
    Tensor dh = loss != nullptr ? scope.tensor(DType::f32, {M, C_}) : Tensor{};
    const bool by_rows = settings_.schedule.head == HeadSchedule::by_rows;
    if (by_rows) {
      linear_cross_entropy_by_rows(ctx_, {.weight = model_.head,
                                          .h = h,
                                          .targets = targets_,
                                          .softcap = model_.config.final_softcap,
                                          .rows_per_chunk = settings_.schedule.head_rows,
                                          .logp = logp_d,
                                          .lse = lse,
                                          .hit = hit,
                                          .dh = dh});
    } else {
      linear_cross_entropy_by_blocks(ctx_, {.weight = model_.head,
                                            .h = h,
                                            .targets = targets_,
                                            .softcap = model_.config.final_softcap,
                                            .logp = logp_d,
                                            .lse = lse,
                                            .hit = hit});
    }
    copy_to_host(ctx_, {.tensor = logp_d, .host = logp.data()});
    if (settings_.hits != nullptr) {
      settings_.hits->resize(logp.size());
      copy_to_host(ctx_, {.tensor = hit, .host = settings_.hits->data()});
    }
    if (!ctx_.counting()) require_finite(logp);
    if (loss == nullptr) return logp;

    std::vector<float> weights(logp.size(), 0.0F);
    if (!ctx_.counting()) *total = (*loss)(logp, weights);
    Tensor weight = scope.tensor(DType::f32, {M});
    copy_from_host(ctx_, {.host = weights.data(), .tensor = weight});
    if (!by_rows) {
      linear_cross_entropy_by_blocks_backward(ctx_, {.weight = model_.head,
                                                     .h = h,
                                                     .targets = targets_,
                                                     .softcap = model_.config.final_softcap,
                                                     .lse = lse,
                                                     .g = weight,
                                                     .dh = dh});
    }
    rmsnorm_backward(ctx_, {.x = picked,
                            .weight = model_.final_norm,
                            .dy = dh,
                            .dx = dh,
                            .eps = model_.config.rms_norm_eps,
                            .offset = model_.config.norm_offset});
    if (!by_rows) {
      std::fill(weights.begin(), weights.end(), 1.0F);  // the blocks have applied them
      copy_from_host(ctx_, {.host = weights.data(), .tensor = weight});
    }
    scatter_rows(ctx_, {.x = dh, .weight = weight, .index = rows_, .y = d});
    return logp;
  }

 private:
  const DecoderLayer& layer(int64_t l) const { return model_.layers[static_cast<size_t>(l)]; }

  SharedKv* donor_of(int64_t l) {
    const LayerConfig& c = layer(l).config;
    if (c.kv_donor >= 0) return &donors_[static_cast<size_t>(c.kv_donor)];
    return c.is_donor ? &donors_[static_cast<size_t>(l)] : nullptr;
  }

  Tensor to_device(std::span<const int32_t> values) {
    Tensor t = ctx_.arena.tensor(DType::i32, {static_cast<int64_t>(values.size())});
    copy_from_host(ctx_, {.host = values.data(), .tensor = t});
    return t;
  }

  void require_finite(const std::vector<float>& logp) const {
    for (size_t m = 0; m < logp.size(); ++m) {
      if (std::isfinite(logp[m])) continue;
      throw Error(
          ErrorCode::device,
          fmt::format("the log-probability of target {} (token {} of the batch) is {}; the learning rate may be "
                      "too high or the base damaged",
                      m, batch_.rows[m], logp[m]));
    }
  }

  Context& ctx_;
  const Model& model_;
  const Adapter& adapter_;
  const StepBatch& batch_;
  const StepSettings& settings_;
  int64_t N_, C_;
  LayerInputs inputs_;
  Tensor rows_, targets_, layer_inputs_;
  std::vector<SharedKv> donors_;
};

// What the main forward leaves of one segment.
struct Kept {
  int64_t mark = 0;  // of the arena, below the segment's output
  Tensor x;          // input of the first layer
  DecoderLayer::Saved saved;
};

// Runs the layers [begin, end) from x, with two buffers that take turns. Returns the last output.
Tensor run_through(Stream& stream, int64_t begin, int64_t end, Tensor x, Tensor first, Tensor second, Tensor last) {
  for (int64_t l = begin; l < end; ++l) {
    Tensor y = l + 1 == end ? last : ((l - begin) % 2 == 0 ? first : second);
    stream.layer_forward(l, x, y, {});
    x = y;
  }
  return x;
}

void segment_backward(Context& ctx, Stream& stream, const Segment& segment, const Kept& kept, const Adapter& grads,
                      Tensor d, int64_t first_adapted) {
  ArenaScope scope(ctx.arena);
  std::vector<Tensor> x = {kept.x};
  std::vector<DecoderLayer::Saved> saved = {kept.saved};
  if (segment.size() > 1) {
    saved.clear();
    for (int64_t l = segment.begin; l + 1 < segment.end; ++l) {
      x.push_back(stream.activations());
      saved.push_back(stream.save(l, segment.level));
      stream.layer_forward(l, x[x.size() - 2], x.back(), saved.back());
    }
    saved.emplace_back();  // the last layer's output is not needed: its backward forms what it reads
  }
  for (int64_t l = segment.end - 1; l >= std::max(segment.begin, first_adapted); --l) {
    const auto i = static_cast<size_t>(l - segment.begin);
    stream.layer_backward(l, grads, x[i], saved[i], d, l > first_adapted);
  }
}

// Where the inputs of segments lie: one after another in the arena, or, in a schedule that offloads, three buffers that take turns while the
// copies wait in pinned memory. Input i lies in buffer i % 3 and is copied by slot i % 3.
class Inputs {
 public:
  // `first`: the first segment that the backward reaches.
  Inputs(Context& ctx, Stream& stream, const StepSettings& settings, int64_t first)
      : ctx_(ctx),
        stream_(stream),
        num_segments_(static_cast<int64_t>(settings.schedule.segments.size())),
        first_(first),
        offload_(settings.schedule.offload) {
    if (!offload_) return;
    SLUICE_ASSERT(settings.pinned != nullptr);
    pinned_.emplace(*settings.pinned);
    for (Tensor& t : ring_) t = stream.activations();
    away_.resize(static_cast<size_t>(num_segments_));
    for (int64_t i = first; i + 1 < num_segments_; ++i) away_[static_cast<size_t>(i)] = pinned_->like(ring_[0]);
  }

  Tensor first() { return offload_ ? ring_[0] : stream_.activations(); }

  // Where segment i writes its output; its input x begins to leave. The last one stays: the backward begins with it.
  Tensor next(int64_t i, Tensor x) {
    if (!offload_) return stream_.activations();
    if (i >= first_ && i + 1 < num_segments_)
      copy_aside(ctx_, {.from = x, .to = away_[static_cast<size_t>(i)], .slot = slot(i)});
    if (i >= 2) wait_aside(ctx_, {.slot = slot(i + 1)});  // input i - 2 has left
    return ring_[static_cast<size_t>(slot(i + 1))];
  }

  // The backward of segment i may read its input after this; the one before it begins to come.
  void bring_back(int64_t i) {
    if (!offload_) return;
    if (i + 1 < num_segments_) wait_aside(ctx_, {.slot = slot(i)});
    if (i <= first_) return;
    copy_aside(ctx_, {.from = away_[static_cast<size_t>(i - 1)],
                      .to = ring_[static_cast<size_t>(slot(i - 1))],
                      .slot = slot(i - 1)});
  }

  // Nothing is on its way any more.
  void finish() {
    for (int s = 0; offload_ && s < 3; ++s) wait_aside(ctx_, {.slot = s});
  }

 private:
  static int slot(int64_t i) { return static_cast<int>(i % 3); }

  Context& ctx_;
  Stream& stream_;
  int64_t num_segments_, first_;
  bool offload_;
  std::array<Tensor, 3> ring_;
  std::vector<Tensor> away_;
  std::optional<ArenaScope> pinned_;
};

// What layers of `host` segments keep at one level. Two blocks on the device take turns; a block's content is copied to pinned memory beside the
// next layers' forward, and comes back once the backward has used up what lay there meanwhile. The n-th such layer uses block n % 2; the last two stay.
class HostSaved {
 public:
  HostSaved(Context& ctx, Stream& stream, const StepSettings& settings, Level level)
      : ctx_(ctx), stream_(stream), first_slot_(level == Level::all ? 6 : 4) {
    std::vector<int64_t> sizes;
    for (const Segment& s : settings.schedule.segments) {
      if (!s.host || s.level != level) continue;
      SLUICE_ASSERT(s.size() == 1 && settings.schedule.offload && settings.pinned != nullptr);
      Arena count = Arena::counting(ctx.device);
      stream.save_in(count, s.begin, s.level);
      sizes.push_back(count.used());
    }
    if (sizes.empty()) return;
    pinned_.emplace(*settings.pinned);
    const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
    for (size_t b = 0; b < std::min<size_t>(sizes.size(), 2); ++b)
      blocks_.push_back(Arena::part_of(ctx.arena, largest));
    for (size_t n = 0; n + 2 < sizes.size(); ++n) away_.push_back(pinned_->tensor(DType::u8, {sizes[n]}));
  }

  // Room for what the next such layer keeps; what lay there has left.
  DecoderLayer::Saved next(const Segment& segment) {
    if (count_ >= 2) wait_aside(ctx_, {.slot = slot(count_)});
    Arena& block = block_of(count_++);
    block.release(0);
    return stream_.save_in(block, segment.begin, segment.level);
  }

  // The layer's forward is done: its block begins to leave.
  void leave() {
    const size_t n = count_ - 1;
    if (n < away_.size()) copy_aside(ctx_, {.from = content(n), .to = away_[n], .slot = slot(n)});
  }

  // The backward of the last layer that is left may read what it kept after this.
  void bring_back() {
    if (count_ - 1 < away_.size()) wait_aside(ctx_, {.slot = slot(count_ - 1)});
  }

  // That backward is done: what lay in its block before begins to come.
  void done() {
    const size_t n = --count_;
    if (n >= 2) copy_aside(ctx_, {.from = away_[n - 2], .to = content(n - 2), .slot = slot(n)});
  }

  // Nothing is on its way any more.
  void finish() {
    for (size_t b = 0; b < blocks_.size(); ++b) wait_aside(ctx_, {.slot = slot(b)});
  }

 private:
  int slot(size_t n) const { return first_slot_ + static_cast<int>(n % 2); }
  Arena& block_of(size_t n) { return blocks_[n % 2]; }
  Tensor content(size_t n) {
    Arena& block = block_of(n);
    block.release(0);
    return block.tensor(DType::u8, away_[n].shape);
  }

  Context& ctx_;
  Stream& stream_;
  int first_slot_;
  std::vector<Arena> blocks_;
  std::vector<Tensor> away_;
  size_t count_ = 0;  // such layers that the forward has passed and the backward has not
  std::optional<ArenaScope> pinned_;
};

// Notes what a phase held at its start and at its peak.
class PhaseScope {
 public:
  PhaseScope(Context& ctx, std::vector<PhaseRecord>* log, Phase phase, int64_t segment) : ctx_(ctx), log_(log) {
    if (log_ == nullptr) return;
    ctx_.arena.reset_peak();
    log_->push_back({.phase = phase, .segment = segment, .held_bytes = ctx_.arena.used()});
  }
  ~PhaseScope() {
    if (log_ != nullptr) log_->back().peak_bytes = ctx_.arena.peak();
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Context& ctx_;
  std::vector<PhaseRecord>* log_;
};

}  // namespace

double forward_backward(Context& ctx, const Model& model, const Adapter& adapter, const Adapter& grads,
                        const StepBatch& batch, const StepSettings& settings, const LossFunction& loss) {
  ArenaScope scope(ctx.arena);
  Stream stream(ctx, model, adapter, batch, settings);
  const Schedule& schedule = settings.schedule;
  SLUICE_ASSERT(!schedule.segments.empty() && schedule.segments.back().end == model.config.num_layers);
  SLUICE_ASSERT(schedule.tile % row_chunk == 0 && schedule.tile > 0);
  const int64_t first_adapted = adapter.layout().entries().front().layer;
  stream.share_kv(/*with_gradients=*/true);
  Tensor d = stream.activations();

  const auto reached = std::find_if(schedule.segments.begin(), schedule.segments.end(),
                                    [&](const Segment& s) { return s.end > first_adapted; });
  Inputs inputs(ctx, stream, settings, reached - schedule.segments.begin());
  HostSaved host_attention(ctx, stream, settings, Level::attention), host_all(ctx, stream, settings, Level::all);
  const auto host_saved = [&](const Segment& s) -> HostSaved& {
    return s.level == Level::all ? host_all : host_attention;
  };
  std::vector<Kept> kept;
  Tensor x = inputs.first();
  stream.embed(x);
  for (const Segment& segment : schedule.segments) {
    const PhaseScope phase(ctx, settings.log, Phase::forward, segment.begin);
    const auto i = static_cast<int64_t>(kept.size());
    // d is free until the head, so it serves as one of the two buffers inside a longer segment.
    Kept k{.x = x};
    if (segment.host) k.saved = host_saved(segment).next(segment);
    else if (segment.size() == 1) k.saved = stream.save(segment.begin, segment.level);
    k.mark = ctx.arena.mark();
    Tensor out = inputs.next(i, x);
    {
      ArenaScope inner(ctx.arena);
      if (segment.size() == 1) {
        stream.layer_forward(segment.begin, x, out, k.saved);
      } else {
        // Buffers alternate so that the last output lands in `out`.
        run_through(stream, segment.begin, segment.end, x, segment.size() % 2 == 0 ? d : out,
                    segment.size() % 2 == 0 ? out : d, out);
      }
    }
    if (segment.host) host_saved(segment).leave();
    kept.push_back(k);
    x = out;
  }

  double total = 0;
  {
    const PhaseScope phase(ctx, settings.log, Phase::head, -1);
    stream.head(x, &loss, d, &total);  // 2
  }
  for (size_t i = kept.size(); i-- > 0;) {  // 3
    const Segment& segment = schedule.segments[i];
    if (segment.end <= first_adapted) break;
    // The segment's output and what lies above it are of no more use.
    ctx.arena.release(kept[i].mark);
    const PhaseScope phase(ctx, settings.log, Phase::backward, segment.begin);
    inputs.bring_back(static_cast<int64_t>(i));
    if (segment.host) host_saved(segment).bring_back();
    segment_backward(ctx, stream, segment, kept[i], grads, d, first_adapted);
    if (segment.host) host_saved(segment).done();
  }
  inputs.finish();
  host_attention.finish();
  host_all.finish();
  return total;
}

std::vector<float> forward_logps(Context& ctx, const Model& model, const Adapter& adapter, const StepBatch& batch,
                                 const StepSettings& settings) {
  ArenaScope scope(ctx.arena);
  StepSettings still = settings;
  still.dropout = {};
  Stream stream(ctx, model, adapter, batch, still);
  stream.share_kv(/*with_gradients=*/false);
  Tensor x = stream.activations(), other = stream.activations();
  stream.embed(x);
  for (int64_t l = 0; l < model.config.num_layers; ++l) {
    stream.layer_forward(l, x, other, {});
    std::swap(x, other);
  }
  return stream.head(x, nullptr, {}, nullptr);
}

void forward_hidden(Context& ctx, const Model& model, const Adapter& adapter, const StepBatch& batch,
                    const StepSettings& settings, const std::function<void(int64_t, Tensor)>& visit) {
  ArenaScope scope(ctx.arena);
  Stream stream(ctx, model, adapter, batch, settings);
  stream.share_kv(/*with_gradients=*/false);
  Tensor x = stream.activations(), other = stream.activations();
  stream.embed(x);
  visit(0, x);
  for (int64_t l = 0; l < model.config.num_layers; ++l) {
    stream.layer_forward(l, x, other, {});
    std::swap(x, other);
    visit(l + 1, x);
  }
}

}  // namespace sluice
