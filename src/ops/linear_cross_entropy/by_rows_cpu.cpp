// By rows. A chunk of rows keeps its exponentials for the whole vocabulary; the gradient follows once lse is known. The
// backward of a chunk runs in one walk over the panels with the forward of the next, so that a panel is dequantised
// once for both:
//
//   round r:   prepare panel r       dequantise it; coefficients of the previous chunk from its exponentials
//              backward panel r - 1  dh += coefficients x panel                                 (previous chunk)
//              forward panel r - 1   h x panel^T -> exponentials, over those that became coefficients   (next chunk)
//
// The parts of a round are independent items for the pool; rounds are separated by its join.
#include <immintrin.h>

#include <cmath>
#include <type_traits>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "ops/common/cpu_simd.h"
#include "ops/linear_cross_entropy/head_panels.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t rows_per_tile = 128, columns_per_tile = 512;  // of logits: a tile stays in one core's cache
constexpr int64_t rows_per_coefficient_item = 32, rows_per_dequantize_item = 256;
constexpr int num_buffers = 2;  // rounds that a panel and its coefficients live for

struct Chunk {
  int64_t begin = 0, rows = 0;  // rows 0: none
};

template <class T>
class ByRows {
 public:
  ByRows(Context& ctx, const LinearCrossEntropyByRows& args);
  void run();

 private:
  // Half keeps three bits more than the coefficients of bf16 operands have.
  using Kept = std::conditional_t<std::is_same_v<T, bf16>, Half, float>;

  Chunk chunk(int64_t i) const;
  Grid backward_grid(const Chunk& chunk) const;
  Grid forward_grid(const Chunk& chunk, int64_t panel) const;
  Gemm backward_product(int64_t panel, const Tile& tile) const;
  Gemm forward_product(const Chunk& chunk, int64_t panel, const Tile& tile, float* z) const;
  int64_t product_scratch_bytes() const;

  void step(const Chunk& previous, const Chunk& next);
  void round(int64_t r, const Chunk& previous, const Chunk& next);
  void dequantize_part(int64_t panel, int64_t item);
  void make_coefficients(const Chunk& chunk, int64_t panel, int64_t row);
  void backward_tile(int64_t panel, const Tile& tile, int worker);
  void forward_tile(const Chunk& chunk, int64_t panel, const Tile& tile, int worker);

  float* z_of(int worker) const { return reinterpret_cast<float*>(rooms_ + worker * (z_bytes_ + product_bytes_)); }
  std::byte* products_of(int worker) const { return rooms_ + worker * (z_bytes_ + product_bytes_) + z_bytes_; }
  T* coefficients(int64_t panel) const { return coefficients_[panel % num_buffers]; }  // [rows, columns(panel)]
  const T* weight_rows(int64_t panel) const {
    if (!in_place_) return panel_[panel % num_buffers];
    return reinterpret_cast<const T*>(args_.weight.data) + panels_.begin(panel) * panels_.C;
  }
  bool is_panel(int64_t p) const { return p >= 0 && p < panels_.count; }

  Context& ctx_;
  const LinearCrossEntropyByRows& args_;
  const Panels panels_;
  const int64_t rows_, capacity_, stride_;
  const bool in_place_;
  Kept* kept_;        // [capacity, stride], of unit_sum
  UnitSums sums_;     // of `capacity` rows
  float* dh_;         // [capacity, C]
  float* at_target_;  // [capacity]: coefficients of the targets
  T* coefficients_[num_buffers] = {};
  T* panel_[num_buffers] = {};
  int64_t z_bytes_, product_bytes_;
  std::byte* rooms_;  // each thread's: a tile of logits, and what products need
};

template <class T>
ByRows<T>::ByRows(Context& ctx, const LinearCrossEntropyByRows& args)
    : ctx_(ctx),
      args_(args),
      panels_(panels_of(args.weight)),
      rows_(args.h.shape[0]),
      capacity_(at_most(args.rows_per_chunk, rows_)),
      stride_(round_up(panels_.V, 16)),
      in_place_(usable_in_place(args.weight, args.h.dtype)) {
  Arena& arena = ctx.arena;
  kept_ = arena.array<Kept>(capacity_ * stride_);
  sums_ = make_unit_sums(arena, capacity_, panels_);
  dh_ = arena.array<float>(capacity_ * panels_.C);
  at_target_ = arena.array<float>(capacity_);
  for (int64_t b = 0; b < at_most(num_buffers, panels_.count); ++b)
    coefficients_[b] = arena.array<T>(capacity_ * panels_.width);
  if (!in_place_) {
    for (int64_t b = 0; b < at_most(num_buffers, panels_.count); ++b)
      panel_[b] = arena.array<T>(panels_.width * panels_.C);
  }
  z_bytes_ = at_most(rows_per_tile, capacity_) * at_most(columns_per_tile, panels_.width) * 4;
  product_bytes_ = round_up(product_scratch_bytes(), Arena::alignment);
  rooms_ = arena.array<std::byte>((z_bytes_ + product_bytes_) * ctx.pool.num_threads());
}

template <class T>
Chunk ByRows<T>::chunk(int64_t i) const {
  const int64_t begin = i * args_.rows_per_chunk, rows = at_most(args_.rows_per_chunk, rows_ - begin);
  return i >= 0 && rows > 0 ? Chunk{begin, rows} : Chunk{};
}

// Whole rows of dh are packed operands, so columns are cut only when there are more threads than tiles of rows.
template <class T>
Grid ByRows<T>::backward_grid(const Chunk& chunk) const {
  const int64_t threads = ctx_.pool.num_threads();
  const int64_t row_step = at_most(at_least(round_up((chunk.rows + threads - 1) / threads, 32), 64), 256);
  const int64_t row_tiles = at_least(1, (chunk.rows + row_step - 1) / row_step),
                parts = (threads + row_tiles - 1) / row_tiles;
  return {chunk.rows, row_step, panels_.C, at_least(round_up((panels_.C + parts - 1) / parts, 32), 128)};
}
template <class T>
Grid ByRows<T>::forward_grid(const Chunk& chunk, int64_t panel) const {
  return {chunk.rows, rows_per_tile, panels_.columns(panel), at_most(columns_per_tile, panels_.width)};
}

template <class T>
Gemm ByRows<T>::backward_product(int64_t panel, const Tile& t) const {
  const int64_t columns = panels_.columns(panel);
  return gradient_product(t.rows, t.cols, columns, panels_.C, coefficients(panel) + t.row * columns,
                          weight_rows(panel) + t.col, dh_ + t.row * panels_.C + t.col,
                          panel == 0 ? Write::set : Write::add);
}
template <class T>
Gemm ByRows<T>::forward_product(const Chunk& chunk, int64_t panel, const Tile& t, float* z) const {
  return logits_product(t.rows, t.cols, panels_.C, args_.h.as<T>() + (chunk.begin + t.row) * panels_.C,
                        weight_rows(panel) + t.col * panels_.C, z);
}

// The most that any product of this call needs: all chunks but the last are alike, and so are all panels between the
// first and the last.
template <class T>
int64_t ByRows<T>::product_scratch_bytes() const {
  int64_t bytes = 0;
  const int64_t chunks = (rows_ + args_.rows_per_chunk - 1) / args_.rows_per_chunk;
  for (const Chunk& c : {chunk(0), chunk(chunks - 1)}) {
    for (int64_t p : {int64_t{0}, at_most(1, panels_.count - 1), panels_.count - 1}) {
      const Grid backward = backward_grid(c), forward = forward_grid(c, p);
      for (int64_t t = 0; t < backward.count(); ++t)
        bytes = at_least(bytes, gemm_scratch_bytes(ctx_, backward_product(p, backward.at(t))));
      for (int64_t t = 0; t < forward.count(); ++t)
        bytes = at_least(bytes, gemm_scratch_bytes(ctx_, forward_product(c, p, forward.at(t), nullptr)));
    }
  }
  return bytes;
}

template <class T>
void ByRows<T>::dequantize_part(int64_t panel, int64_t item) {
  const int64_t first = item * rows_per_dequantize_item;
  const int64_t count = at_most(rows_per_dequantize_item, panels_.columns(panel) - first);
  dequantize_rows(ctx_, args_.weight, panels_.begin(panel) + first, count,
                  panel_[panel % num_buffers] + first * panels_.C);
}

// One row's coefficients (onehot - p) dl/dz of a panel, rounded to T.
template <class T>
void ByRows<T>::make_coefficients(const Chunk& chunk, int64_t panel, int64_t row) {
  const int64_t columns = panels_.columns(panel), begin = panels_.begin(panel);
  const Kept* kept = kept_ + row * stride_ + begin;
  T* out = coefficients(panel) + row * columns;
  for (int64_t u = 0; u < columns; u += unit_columns) {
    const float factor = -sums_.max[row * sums_.stride + (begin + u) / unit_columns];
    const int64_t end = at_most(u + unit_columns, columns);
    int64_t c = u;
    for (; c + lanes <= end; c += lanes) store(out + c, load(kept + c) * factor);
    if (c < end) store_part(out + c, load(kept + c) * factor, end - c);
  }
  const int64_t target = args_.targets.as<int32_t>()[chunk.begin + row] - begin;
  if (target >= 0 && target < columns) out[target] = static_cast<T>(at_target_[row]);
}

template <class T>
void ByRows<T>::backward_tile(int64_t panel, const Tile& tile, int worker) {
  gemm_on_this_thread(ctx_, backward_product(panel, tile), products_of(worker));
}

template <class T>
void ByRows<T>::forward_tile(const Chunk& chunk, int64_t panel, const Tile& tile, int worker) {
  float* z = z_of(worker);
  gemm_on_this_thread(ctx_, forward_product(chunk, panel, tile, z), products_of(worker));
  const int64_t begin = panels_.begin(panel) + tile.col;
  for (int64_t row = tile.row; row < tile.row + tile.rows; ++row, z += tile.cols) {
    reduce_logits(z, begin, tile.cols, args_.softcap, args_.targets.as<int32_t>()[chunk.begin + row], row, sums_,
                  kept_ + row * stride_ + begin);
  }
}

template <class T>
void ByRows<T>::round(int64_t r, const Chunk& previous, const Chunk& next) {
  const Grid nothing{0, 1, 0, 1};
  const Grid backward = is_panel(r - 1) ? backward_grid(previous) : nothing;
  const Grid forward = is_panel(r - 1) ? forward_grid(next, r - 1) : nothing;
  const Grid dequantize =
      is_panel(r) && !in_place_ ? Grid{panels_.columns(r), rows_per_dequantize_item, 1, 1} : nothing;
  const Grid coefficients = is_panel(r) ? Grid{previous.rows, rows_per_coefficient_item, 1, 1} : nothing;
  const int64_t items = backward.count() + forward.count() + dequantize.count() + coefficients.count();
  ctx_.pool.parallel_for(items, [&](int64_t i, int worker) {
    if (i < backward.count()) return backward_tile(r - 1, backward.at(i), worker);
    i -= backward.count();
    if (i < forward.count()) return forward_tile(next, r - 1, forward.at(i), worker);
    i -= forward.count();
    if (i < dequantize.count()) return dequantize_part(r, i);
    const Tile rows = coefficients.at(i - dequantize.count());
    for (int64_t row = rows.row; row < rows.row + rows.rows; ++row) make_coefficients(previous, r, row);
  });
}

template <class T>
void ByRows<T>::step(const Chunk& previous, const Chunk& next) {
  for (int64_t r = 0; r < panels_.count + 1; ++r) round(r, previous, next);
  if (previous.rows > 0) store_rows(args_.dh.rows(previous.begin, previous.rows), dh_);
  for (int64_t row = 0; row < next.rows; ++row) {
    const RowResults to = results_of(args_.lse, args_.logp, args_.hit, next.begin + row);
    finish_row(sums_, panels_.units(), row, to);
    at_target_[row] = -std::expm1(*to.logp) * sums_.target_slope[row];  // 1 - p, without cancellation
  }
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
    log_probabilities(ctx, {.weight = args.weight,
                            .h = args.h,
                            .targets = args.targets,
                            .softcap = args.softcap,
                            .logp = args.logp,
                            .lse = args.lse,
                            .hit = args.hit});
  } else if (args.h.shape[0] > 0) {
    if (args.h.dtype == DType::bf16) by_rows<bf16>(ctx, args);
    else by_rows<float>(ctx, args);
  }
}

}  // namespace sluice::SLUICE_CPU
