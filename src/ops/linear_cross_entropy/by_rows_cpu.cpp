// By rows. A chunk of rows keeps its logits for the whole vocabulary; the gradient follows once lse is known. The backward
// of a chunk runs in one walk over the panels with the forward of the next, so that a panel is dequantised once for both:
//
//   round r:   prepare panel r       dequantise it; logits of the previous chunk -> coefficients, in place
//              backward panel r - 1  dh += coefficients x panel           (previous chunk)
//              forward panel r - 2   logits = h x panel^T, in the room that the coefficients left   (next chunk)
//
// The parts of a round are independent items for the pool; rounds are separated by its join.
#include <cmath>
#include <cstring>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "ops/common/cpu_simd.h"
#include "ops/linear_cross_entropy/head_panels.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t rows_per_tile = 256, rows_per_coefficient_item = 32, rows_per_dequantize_item = 256;
constexpr int num_buffers = 3;  // a panel lives for three rounds

struct Chunk {
  int64_t begin = 0, rows = 0, padded = 0;  // rows 0: none
};

template <class T>
class ByRows {
 public:
  ByRows(Context& ctx, const LinearCrossEntropyByRows& args);
  void run();

 private:
  static constexpr int64_t per_float = static_cast<int64_t>(sizeof(float) / sizeof(T));

  Chunk chunk(int64_t i) const;
  Grid backward_grid(const Chunk& chunk) const;
  Grid forward_grid(const Chunk& chunk, int64_t panel) const;
  Gemm backward_product(int64_t panel, const Tile& tile) const;
  Gemm forward_product(int64_t panel, const Tile& tile) const;
  int64_t product_scratch_bytes() const;
  std::byte* scratch_of(int worker) const { return products_ + worker * product_bytes_; }

  void step(const Chunk& previous, const Chunk& next);
  void round(int64_t r, const Chunk& previous, const Chunk& next);
  void dequantize_part(int64_t panel, int64_t item);
  void make_coefficients(const Chunk& chunk, int64_t panel, int64_t row);
  void forward_tile(const Chunk& chunk, int64_t panel, const Tile& tile, int worker);
  void load_h(const Chunk& chunk);
  void finish_forward(const Chunk& chunk);
  void finish_backward(const Chunk& chunk);

  float* logits(int64_t panel) const { return logits_ + panel * capacity_ * logits_stride(panels_.width); }
  int64_t stride(int64_t panel) const { return logits_stride(panels_.columns(panel)); }
  const T* weight_rows(int64_t panel) const {
    if (!in_place_) return buffers_[panel % num_buffers];
    return reinterpret_cast<const T*>(args_.weight.data) + panels_.begin(panel) * panels_.C;
  }
  bool is_panel(int64_t p) const { return p >= 0 && p < panels_.count; }

  Context& ctx_;
  const LinearCrossEntropyByRows& args_;
  const Panels panels_;
  const int64_t rows_, capacity_, unit_stride_;
  const bool in_place_;
  float* logits_;              // by panel: [capacity, stride(panel)]
  T* h_;                       // [capacity, C], padded with zeros
  float* dh_;                  // [capacity, C]
  float *unit_max_, *unit_sum_;  // [capacity, unit_stride]
  float* target_logit_;        // [capacity]
  T* buffers_[num_buffers] = {};
  int64_t product_bytes_ = 0;
  std::byte* products_ = nullptr;
};

template <class T>
ByRows<T>::ByRows(Context& ctx, const LinearCrossEntropyByRows& args)
    : ctx_(ctx),
      args_(args),
      panels_(panels_of(args.weight)),
      rows_(args.h.shape[0]),
      capacity_(at_most(args.rows_per_chunk, round_up(rows_, row_granule))),
      unit_stride_(round_up(panels_.units(), 16)),
      in_place_(usable_in_place(args.weight, args.h.dtype)) {
  Arena& arena = ctx.arena;
  const int64_t last = panels_.count - 1;
  logits_ = arena.array<float>(capacity_ * (last * logits_stride(panels_.width) + stride(last)));
  h_ = arena.array<T>(capacity_ * panels_.C);
  dh_ = arena.array<float>(capacity_ * panels_.C);
  unit_max_ = arena.array<float>(capacity_ * unit_stride_);
  unit_sum_ = arena.array<float>(capacity_ * unit_stride_);
  target_logit_ = arena.array<float>(capacity_);
  if (!in_place_) {
    for (int64_t b = 0; b < at_most(num_buffers, panels_.count); ++b) buffers_[b] = arena.array<T>(panels_.width * panels_.C);
  }
  product_bytes_ = round_up(product_scratch_bytes(), Arena::alignment);
  products_ = arena.array<std::byte>(product_bytes_ * ctx.pool.num_threads());
}

template <class T>
Chunk ByRows<T>::chunk(int64_t i) const {
  const int64_t begin = i * args_.rows_per_chunk, rows = at_least(0, at_most(args_.rows_per_chunk, rows_ - begin));
  if (i < 0 || rows == 0) return {};
  return {begin, rows, at_most(round_up(rows, row_granule), capacity_)};
}

// Tiles of a round: at least two for each thread, where the shape allows.
template <class T>
Grid ByRows<T>::backward_grid(const Chunk& chunk) const {
  const int64_t share = round_up(panels_.C / (2 * ctx_.pool.num_threads()), 16);
  return {chunk.padded, rows_per_tile, panels_.C, at_most(at_least(share, 64), 512)};
}
template <class T>
Grid ByRows<T>::forward_grid(const Chunk& chunk, int64_t panel) const {
  const int64_t share = round_up(panels_.width / (2 * ctx_.pool.num_threads()), unit_columns);
  return {chunk.padded, rows_per_tile, panels_.columns(panel), at_most(at_least(share, unit_columns), 1024)};
}

template <class T>
Gemm ByRows<T>::backward_product(int64_t panel, const Tile& t) const {
  const T* coefficients = reinterpret_cast<const T*>(logits(panel) + t.row * stride(panel));
  return gradient_product(t.rows, t.cols, panels_.columns(panel), panels_.C, coefficients, stride(panel) * per_float,
                          weight_rows(panel) + t.col, dh_ + t.row * panels_.C + t.col,
                          panel == 0 ? Write::set : Write::add);
}
template <class T>
Gemm ByRows<T>::forward_product(int64_t panel, const Tile& t) const {
  return logits_product(t.rows, t.cols, panels_.C, h_ + t.row * panels_.C, weight_rows(panel) + t.col * panels_.C,
                        logits(panel) + t.row * stride(panel) + t.col, stride(panel));
}

// The most that any product of this call needs: all chunks but the last are alike, and so are all panels between the first and the last.
template <class T>
int64_t ByRows<T>::product_scratch_bytes() const {
  int64_t bytes = 0;
  const int64_t chunks = (rows_ + args_.rows_per_chunk - 1) / args_.rows_per_chunk;
  for (int64_t i : {int64_t{0}, chunks - 1}) {
    for (int64_t p : {int64_t{0}, at_most(1, panels_.count - 1), panels_.count - 1}) {
      const Grid backward = backward_grid(chunk(i)), forward = forward_grid(chunk(i), p);
      for (int64_t t = 0; t < backward.count(); ++t) {
        bytes = at_least(bytes, gemm_scratch_bytes(ctx_, backward_product(p, backward.at(t))));
      }
      for (int64_t t = 0; t < forward.count(); ++t) {
        bytes = at_least(bytes, gemm_scratch_bytes(ctx_, forward_product(p, forward.at(t))));
      }
    }
  }
  return bytes;
}

template <class T>
void ByRows<T>::dequantize_part(int64_t panel, int64_t item) {
  const int64_t first = item * rows_per_dequantize_item;
  const int64_t count = at_most(rows_per_dequantize_item, panels_.columns(panel) - first);
  dequantize_rows(ctx_, args_.weight, panels_.begin(panel) + first, count, buffers_[panel % num_buffers] + first * panels_.C);
}

// One row's coefficients (onehot - p) dl/dz of a panel, rounded to T, from the front of the room of its logits. Reading runs
// ahead of writing.
template <class T>
void ByRows<T>::make_coefficients(const Chunk& chunk, int64_t panel, int64_t row) {
  float* z = logits(panel) + row * stride(panel);
  T* out = reinterpret_cast<T*>(z);
  const int64_t columns = panels_.columns(panel), n = chunk.begin + row;
  const int64_t target = args_.targets.as<int32_t>()[n] - panels_.begin(panel);
  const bool has_target = target >= 0 && target < columns;
  const float lse = args_.lse.as<float>()[n], softcap = args_.softcap;
  float target_coefficient = -std::expm1(args_.logp.as<float>()[n]);  // 1 - p, without cancellation
  if (has_target && softcap > 0) target_coefficient *= cap_slope(splat(z[target]), 1.0F / softcap)[0];
  if (softcap > 0) {
    const float inverse = 1.0F / softcap;
    for (int64_t c = 0; c < columns; c += lanes) {
      const F32 l = load(z + c);
      store(out + c, -exp(l - lse) * cap_slope(l, inverse));
    }
  } else {
    const float* factors = unit_max_ + row * unit_stride_ + panels_.begin(panel) / unit_columns;
    for (int64_t u = 0; u < columns; u += unit_columns) {
      const float factor = -factors[u / unit_columns];
      for (int64_t c = u; c < at_most(u + unit_columns, columns); c += lanes) store(out + c, load(z + c) * factor);
    }
  }
  if (has_target) out[target] = static_cast<T>(target_coefficient);
}

template <class T>
void ByRows<T>::forward_tile(const Chunk& chunk, int64_t panel, const Tile& tile, int worker) {
  gemm_on_this_thread(ctx_, forward_product(panel, tile), scratch_of(worker));
  for (int64_t row = tile.row; row < at_most(tile.row + tile.rows, chunk.rows); ++row) {
    const int64_t target = args_.targets.as<int32_t>()[chunk.begin + row] - panels_.begin(panel);
    for (int64_t u = tile.col; u < tile.col + tile.cols; u += unit_columns) {
      const int64_t count = at_most(unit_columns, tile.col + tile.cols - u);
      const int64_t in_unit = target >= u && target < u + count ? target - u : -1;
      const UnitSum s = unit_sum(logits(panel) + row * stride(panel) + u, count, args_.softcap, in_unit, target_logit_ + row);
      const int64_t unit = row * unit_stride_ + (panels_.begin(panel) + u) / unit_columns;
      unit_max_[unit] = s.max;
      unit_sum_[unit] = s.sum;
    }
  }
}

template <class T>
void ByRows<T>::round(int64_t r, const Chunk& previous, const Chunk& next) {
  const bool prepares = is_panel(r), goes_back = is_panel(r - 1) && previous.rows > 0, goes_on = is_panel(r - 2) && next.rows > 0;
  const Grid backward = backward_grid(previous), forward = is_panel(r - 2) ? forward_grid(next, r - 2) : Grid{0, 1, 0, 1};
  const int64_t num_backward = goes_back ? backward.count() : 0, num_forward = goes_on ? forward.count() : 0;
  const int64_t num_dequantize = prepares && !in_place_ ? (panels_.columns(r) + rows_per_dequantize_item - 1) / rows_per_dequantize_item : 0;
  const int64_t num_coefficients = prepares ? (previous.rows + rows_per_coefficient_item - 1) / rows_per_coefficient_item : 0;
  ctx_.pool.parallel_for(num_backward + num_forward + num_dequantize + num_coefficients, [&](int64_t i, int worker) {
    if (i < num_backward) return gemm_on_this_thread(ctx_, backward_product(r - 1, backward.at(i)), scratch_of(worker));
    i -= num_backward;
    if (i < num_forward) return forward_tile(next, r - 2, forward.at(i), worker);
    i -= num_forward;
    if (i < num_dequantize) return dequantize_part(r, i);
    i -= num_dequantize;
    const int64_t end = at_most((i + 1) * rows_per_coefficient_item, previous.rows);
    for (int64_t row = i * rows_per_coefficient_item; row < end; ++row) make_coefficients(previous, r, row);
  });
}

template <class T>
void ByRows<T>::load_h(const Chunk& chunk) {
  const int64_t C = panels_.C;
  std::memcpy(h_, args_.h.as<T>() + chunk.begin * C, static_cast<size_t>(chunk.rows * C) * sizeof(T));
  std::memset(static_cast<void*>(h_ + chunk.rows * C), 0, static_cast<size_t>((chunk.padded - chunk.rows) * C) * sizeof(T));
}

template <class T>
void ByRows<T>::finish_forward(const Chunk& chunk) {
  ctx_.pool.parallel_for(chunk.rows, [&](int64_t row, int) {
    const int64_t n = chunk.begin + row;
    reduce_units(unit_max_ + row * unit_stride_, unit_sum_ + row * unit_stride_, panels_.units(), target_logit_[row],
                 args_.lse.as<float>() + n, args_.logp.as<float>() + n);
  });
}

template <class T>
void ByRows<T>::finish_backward(const Chunk& chunk) {
  store_rows(args_.dh.rows(chunk.begin, chunk.rows), dh_);
}

template <class T>
void ByRows<T>::step(const Chunk& previous, const Chunk& next) {
  if (next.rows > 0) load_h(next);
  for (int64_t r = 0; r < panels_.count + 2; ++r) round(r, previous, next);
  if (previous.rows > 0) finish_backward(previous);
  if (next.rows > 0) finish_forward(next);
}

template <class T>
void ByRows<T>::run() {
  const int64_t chunks = (rows_ + args_.rows_per_chunk - 1) / args_.rows_per_chunk;
  for (int64_t i = 0; i <= chunks; ++i) step(chunk(i - 1), chunk(i));
}

template <class T>
void by_rows(Context& ctx, const LinearCrossEntropyByRows& args) {
  ArenaScope scratch(ctx.arena);
  ByRows<T> head(ctx, args);
  if (ctx.counting()) return;
  check_targets(args.targets, args.weight.rows);
  head.run();
}

}  // namespace

void linear_cross_entropy_by_rows(Context& ctx, const LinearCrossEntropyByRows& args) {
  if (args.dh.empty()) {
    log_probabilities(ctx, {.weight = args.weight, .h = args.h, .targets = args.targets, .softcap = args.softcap,
                            .logp = args.logp, .lse = args.lse});
  } else if (args.h.shape[0] > 0) {
    if (args.h.dtype == DType::bf16) by_rows<bf16>(ctx, args);
    else by_rows<float>(ctx, args);
  }
}

}  // namespace sluice::SLUICE_CPU
