// By blocks, backward: the logits of a block are recomputed, turned into coefficients with the known lse and g, and multiplied with
// the block of the weight. An item of work is a few rows; within it the units of the vocabulary follow in order, so each row's sums
// have one order. A unit in which all coefficients of a row are below `skip_below` counts as zero for that row, whatever
// the other rows of the item do; its product is left out when no row of the item needs it.
#include <cmath>
#include <cstring>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "ops/common/cpu_simd.h"
#include "ops/linear_cross_entropy/head_panels.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t rows_per_chunk = 512, most_rows_per_item = 128, rows_per_dequantize_item = 256;

// Sums of |coefficient| of one row.
struct Mass {
  double all = 0, dropped = 0;
};

// Coefficients g (onehot - p) dl/dz of one unit from its logits, in place, rounded to T; returns sum and maximum of their magnitudes.
struct Magnitude {
  float sum, max;
};
template <class T>
Magnitude make_coefficients(float* z, int64_t count, float softcap, float lse, float g, int64_t target) {
  T* out = reinterpret_cast<T*>(z);
  if (softcap > 0) cap_logits(z, count, softcap);
  const int64_t whole = round_up(count, lanes);
  for (int64_t c = count; c < whole; ++c) z[c] = -__builtin_inff();
  const float inverse = softcap > 0 ? 1.0F / softcap : 0.0F;
  float target_coefficient = 0;
  if (target >= 0) {
    const float logp = z[target] - lse;
    target_coefficient = -std::expm1(logp < 0 ? logp : 0.0F) * g * (softcap > 0 ? cap_slope(splat(z[target]), inverse)[0] : 1.0F);
    z[target] = -__builtin_inff();
  }
  F32 sum = {}, largest = {};
  for (int64_t c = 0; c < whole; c += lanes) {
    const F32 l = load(z + c);
    F32 k = exp(l - lse) * -g;
    if (softcap > 0) k = k * cap_slope(l, inverse);
    const F32 magnitude = max(k, -k);
    sum = sum + magnitude;
    largest = max(magnitude, largest);
    store(out + c, k);
  }
  if (target >= 0) out[target] = static_cast<T>(target_coefficient);
  const float at_target = target_coefficient < 0 ? -target_coefficient : target_coefficient;
  const float top = reduce_max(largest);
  return {reduce_add(sum) + at_target, top > at_target ? top : at_target};
}

template <class T>
class ByBlocksBackward {
 public:
  ByBlocksBackward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args);
  void run();

 private:
  static constexpr int64_t per_float = static_cast<int64_t>(sizeof(float) / sizeof(T));
  static constexpr int64_t stride = unit_columns + 16;  // of a row of logits

  Gemm forward_product(const T* unit, int64_t columns, int64_t row, int64_t rows, float* z) const {
    return logits_product(rows, columns, panels_.C, h_ + row * panels_.C, unit, z, stride);
  }
  Gemm backward_product(const T* unit, int64_t columns, int64_t row, int64_t rows, const float* z) const {
    return gradient_product(rows, panels_.C, columns, panels_.C, reinterpret_cast<const T*>(z), stride * per_float, unit,
                            dh_ + row * panels_.C, Write::add);
  }
  int64_t product_scratch_bytes() const;
  const T* weight_rows(int64_t panel) const {
    if (!in_place_) return buffers_[panel % 2];
    return reinterpret_cast<const T*>(args_.weight.data) + panels_.begin(panel) * panels_.C;
  }
  void dequantize_part(int64_t panel, int64_t item);
  void add_panel(int64_t begin, int64_t rows, int64_t panel, int64_t first, int worker);
  bool prepare_unit(int64_t begin, int64_t row, int64_t v, int64_t columns, float* z);
  void run_chunk(int64_t begin, int64_t rows);

  Context& ctx_;
  const LinearCrossEntropyByBlocksBackward& args_;
  const Panels panels_;
  const int64_t rows_, capacity_, rows_per_item_;
  const bool in_place_;
  T* h_;       // [capacity, C], padded with zeros
  float* dh_;  // [capacity, C]
  Mass* mass_;  // [capacity]
  T* buffers_[2] = {};
  int64_t z_bytes_, product_bytes_;
  std::byte* rooms_;
  Mass total_;
};

template <class T>
ByBlocksBackward<T>::ByBlocksBackward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args)
    : ctx_(ctx),
      args_(args),
      panels_(panels_of(args.weight)),
      rows_(args.h.shape[0]),
      capacity_(at_most(rows_per_chunk, round_up(rows_, row_granule))),
      rows_per_item_(at_most(most_rows_per_item, round_up(capacity_ / (2 * ctx.pool.num_threads()) + 1, row_granule))),
      in_place_(usable_in_place(args.weight, args.h.dtype)) {
  Arena& arena = ctx.arena;
  h_ = arena.array<T>(capacity_ * panels_.C);
  dh_ = arena.array<float>(capacity_ * panels_.C);
  mass_ = arena.array<Mass>(capacity_);
  if (!in_place_) {
    for (int64_t b = 0; b < at_most(2, panels_.count); ++b) buffers_[b] = arena.array<T>(panels_.width * panels_.C);
  }
  z_bytes_ = round_up(rows_per_item_ * stride * 4, Arena::alignment);
  product_bytes_ = round_up(product_scratch_bytes(), Arena::alignment);
  rooms_ = arena.array<std::byte>((z_bytes_ + product_bytes_) * ctx.pool.num_threads());
}

template <class T>
int64_t ByBlocksBackward<T>::product_scratch_bytes() const {
  int64_t bytes = 0;
  const int64_t last = panels_.V - (panels_.units() - 1) * unit_columns;
  for (int64_t rows = row_granule; rows <= rows_per_item_; rows += row_granule) {
    for (int64_t columns : {panels_.V < unit_columns ? last : unit_columns, last}) {
      bytes = at_least(bytes, gemm_scratch_bytes(ctx_, forward_product(nullptr, columns, 0, rows, nullptr)));
      bytes = at_least(bytes, gemm_scratch_bytes(ctx_, backward_product(nullptr, columns, 0, rows, nullptr)));
    }
  }
  return bytes;
}

template <class T>
void ByBlocksBackward<T>::dequantize_part(int64_t panel, int64_t item) {
  const int64_t first = item * rows_per_dequantize_item;
  const int64_t count = at_most(rows_per_dequantize_item, panels_.columns(panel) - first);
  dequantize_rows(ctx_, args_.weight, panels_.begin(panel) + first, count, buffers_[panel % 2] + first * panels_.C);
}

// The coefficients of a row for the unit that begins at column v; false when the row skips the unit.
template <class T>
bool ByBlocksBackward<T>::prepare_unit(int64_t begin, int64_t row, int64_t v, int64_t columns, float* z) {
  const int64_t n = begin + row, target = args_.targets.as<int32_t>()[n] - v;
  const Magnitude m = make_coefficients<T>(z, columns, args_.softcap, args_.lse.as<float>()[n], args_.g.as<float>()[n],
                                           target >= 0 && target < columns ? target : -1);
  mass_[row].all += static_cast<double>(m.sum);
  if (!(m.max < args_.skip_below)) return true;
  mass_[row].dropped += static_cast<double>(m.sum);
  std::memset(static_cast<void*>(z), 0, static_cast<size_t>(columns) * sizeof(T));
  return false;
}

template <class T>
void ByBlocksBackward<T>::add_panel(int64_t begin, int64_t rows, int64_t panel, int64_t first, int worker) {
  auto* z = reinterpret_cast<float*>(rooms_ + worker * (z_bytes_ + product_bytes_));
  std::byte* products = rooms_ + worker * (z_bytes_ + product_bytes_) + z_bytes_;
  const int64_t count = at_most(rows_per_item_, rows - first), padded = round_up(count, row_granule);
  for (int64_t u = 0; u < panels_.columns(panel); u += unit_columns) {
    const int64_t columns = at_most(unit_columns, panels_.columns(panel) - u);
    const T* unit = weight_rows(panel) + u * panels_.C;
    gemm_on_this_thread(ctx_, forward_product(unit, columns, first, padded, z), products);
    bool needed = false;
    for (int64_t row = 0; row < count; ++row) {
      if (prepare_unit(begin, first + row, panels_.begin(panel) + u, columns, z + row * stride)) needed = true;
    }
    if (needed) gemm_on_this_thread(ctx_, backward_product(unit, columns, first, padded, z), products);
  }
}

template <class T>
void ByBlocksBackward<T>::run_chunk(int64_t begin, int64_t rows) {
  const int64_t C = panels_.C, padded = round_up(rows, row_granule);
  std::memcpy(h_, args_.h.as<T>() + begin * C, static_cast<size_t>(rows * C) * sizeof(T));
  std::memset(static_cast<void*>(h_ + rows * C), 0, static_cast<size_t>((padded - rows) * C) * sizeof(T));
  std::memset(dh_, 0, static_cast<size_t>(padded * C) * sizeof(float));
  for (int64_t row = 0; row < rows; ++row) mass_[row] = {};
  const int64_t num_items = (rows + rows_per_item_ - 1) / rows_per_item_;
  for (int64_t p = -1; p < panels_.count; ++p) {  // panel p is multiplied while p + 1 is dequantised
    const int64_t next = p + 1, num_rows = p >= 0 ? num_items : 0;
    const int64_t num_dequantize =
        next < panels_.count && !in_place_ ? (panels_.columns(next) + rows_per_dequantize_item - 1) / rows_per_dequantize_item : 0;
    ctx_.pool.parallel_for(num_rows + num_dequantize, [&](int64_t i, int worker) {
      if (i < num_rows) add_panel(begin, rows, p, i * rows_per_item_, worker);
      else dequantize_part(next, i - num_rows);
    });
  }
  store_rows(args_.dh.rows(begin, rows), dh_);
  for (int64_t row = 0; row < rows; ++row) {
    total_.all += mass_[row].all;
    total_.dropped += mass_[row].dropped;
  }
}

template <class T>
void ByBlocksBackward<T>::run() {
  for (int64_t begin = 0; begin < rows_; begin += rows_per_chunk) run_chunk(begin, at_most(rows_per_chunk, rows_ - begin));
  if (!args_.dropped.empty()) {
    args_.dropped.as<float>()[0] = total_.all > 0 ? static_cast<float>(total_.dropped / total_.all) : 0.0F;
  }
}

template <class T>
void by_blocks_backward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args) {
  ArenaScope scratch(ctx.arena);
  ByBlocksBackward<T> head(ctx, args);
  if (ctx.counting()) return;
  check_targets(args.targets, args.weight.rows);
  head.run();
}

}  // namespace

void linear_cross_entropy_by_blocks_backward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args) {
  if (args.h.shape[0] == 0) {
    if (!args.dropped.empty() && !ctx.counting()) args.dropped.as<float>()[0] = 0;
  } else if (args.h.dtype == DType::bf16) {
    by_blocks_backward<bf16>(ctx, args);
  } else {
    by_blocks_backward<float>(ctx, args);
  }
}

}  // namespace sluice::SLUICE_CPU
