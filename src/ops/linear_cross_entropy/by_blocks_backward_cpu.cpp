// By blocks, backward: the logits of a block are recomputed, turned into coefficients with the known lse and g, and
// multiplied with the block of the weight. An item of work is a few rows; within it the units of the vocabulary follow
// in order, so each row's sums have one order. A unit in which all coefficients of a row are below `skip_below` counts
// as zero for that row, whatever the other rows of the item do; its product is left out when no row of the item needs
// it.
#include <immintrin.h>

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

// Coefficients g (onehot - p) dl/dz of one unit from its logits z, rounded to T; returns the sum and the maximum of
// their magnitudes.
struct Magnitude {
  float sum, max;
};
template <class T>
Magnitude make_coefficients(float* z, int64_t count, float softcap, float lse, float g, int64_t target, T* out) {
  if (softcap > 0) cap_logits(z, count, softcap);
  const float inverse = softcap > 0 ? 1.0F / softcap : 0.0F;
  float at_target = 0;
  if (target >= 0) {
    const float logp = z[target] - lse, slope = softcap > 0 ? cap_slope(splat(z[target]), inverse)[0] : 1.0F;
    at_target = -std::expm1(logp > 0 ? 0.0F : logp) * g * slope;
    z[target] = -__builtin_inff();
  }
  F32 sum = {}, largest = {};
  for (int64_t c = 0; c < count; c += lanes) {
    const F32 l = load_logits(z + c, count - c);
    F32 k = exp(l - lse) * -g;
    if (softcap > 0) k = k * cap_slope(l, inverse);
    const F32 magnitude = max(k, -k);
    sum = sum + magnitude;
    largest = max(magnitude, largest);
    if (c + lanes <= count) store(out + c, k);
    else store_part(out + c, k, count - c);
  }
  if (target >= 0) out[target] = static_cast<T>(at_target);
  const float of_target = at_target < 0 ? -at_target : at_target, top = reduce_max(largest);
  return {reduce_add(sum) + of_target, top > of_target ? top : of_target};
}

template <class T>
class ByBlocksBackward {
 public:
  ByBlocksBackward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args);
  void run();

 private:
  Gemm forward_product(const T* unit, int64_t columns, int64_t row, int64_t rows, float* z) const {
    return logits_product(rows, columns, panels_.C, args_.h.as<T>() + row * panels_.C, unit, z);
  }
  Gemm backward_product(const T* unit, int64_t columns, int64_t rows, const T* coefficients, float* dh) const {
    return gradient_product(rows, panels_.C, columns, panels_.C, coefficients, unit, dh, Write::add);
  }
  int64_t product_scratch_bytes() const;
  const T* weight_rows(int64_t panel) const {
    if (!in_place_) return buffers_[panel % 2];
    return reinterpret_cast<const T*>(args_.weight.data) + panels_.begin(panel) * panels_.C;
  }
  void dequantize_part(int64_t panel, int64_t item);
  void add_panel(int64_t begin, int64_t rows, int64_t panel, int64_t first, int worker);
  bool prepare_unit(int64_t n, int64_t v, int64_t columns, float* z, T* coefficients, Mass& mass) const;
  void run_chunk(int64_t begin, int64_t rows);

  Context& ctx_;
  const LinearCrossEntropyByBlocksBackward& args_;
  const Panels panels_;
  const int64_t rows_, capacity_, rows_per_item_;
  const bool in_place_;
  float* dh_;   // [capacity, C]
  Mass* mass_;  // [capacity]
  T* buffers_[2] = {};
  int64_t z_bytes_, coefficient_bytes_, product_bytes_;
  std::byte* rooms_;  // each thread's
  Mass total_;
};

template <class T>
ByBlocksBackward<T>::ByBlocksBackward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args)
    : ctx_(ctx),
      args_(args),
      panels_(panels_of(args.weight)),
      rows_(args.h.shape[0]),
      capacity_(at_most(rows_per_chunk, rows_)),
      rows_per_item_(at_most(most_rows_per_item, round_up(capacity_ / (2 * ctx.pool.num_threads()) + 1, 32))),
      in_place_(usable_in_place(args.weight, args.h.dtype)) {
  Arena& arena = ctx.arena;
  dh_ = arena.array<float>(capacity_ * panels_.C);
  mass_ = arena.array<Mass>(capacity_);
  if (!in_place_) {
    for (int64_t b = 0; b < at_most(2, panels_.count); ++b) buffers_[b] = arena.array<T>(panels_.width * panels_.C);
  }
  z_bytes_ = rows_per_item_ * unit_columns * 4;
  coefficient_bytes_ = rows_per_item_ * unit_columns * size_of(args.h.dtype);
  product_bytes_ = round_up(product_scratch_bytes(), Arena::alignment);
  rooms_ = arena.array<std::byte>((z_bytes_ + coefficient_bytes_ + product_bytes_) * ctx.pool.num_threads());
}

template <class T>
int64_t ByBlocksBackward<T>::product_scratch_bytes() const {
  int64_t bytes = 0;
  for (int64_t rows :
       {at_most(rows_per_item_, rows_), capacity_ % rows_per_item_, rows_ % rows_per_chunk % rows_per_item_}) {
    for (int64_t columns : {at_most(unit_columns, panels_.V), panels_.V - (panels_.units() - 1) * unit_columns}) {
      bytes = at_least(bytes, gemm_scratch_bytes(ctx_, forward_product(nullptr, columns, 0, rows, nullptr)));
      bytes = at_least(bytes, gemm_scratch_bytes(ctx_, backward_product(nullptr, columns, rows, nullptr, nullptr)));
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

// The coefficients of row n for the unit that begins at column v; false when the row skips the unit.
template <class T>
bool ByBlocksBackward<T>::prepare_unit(int64_t n, int64_t v, int64_t columns, float* z, T* coefficients,
                                       Mass& mass) const {
  const int64_t target = args_.targets.as<int32_t>()[n] - v;
  const Magnitude m = make_coefficients(z, columns, args_.softcap, args_.lse.as<float>()[n], args_.g.as<float>()[n],
                                        target >= 0 && target < columns ? target : -1, coefficients);
  mass.all += static_cast<double>(m.sum);
  if (!(m.max < args_.skip_below)) return true;  // NaN is not skipped
  mass.dropped += static_cast<double>(m.sum);
  std::memset(static_cast<void*>(coefficients), 0, static_cast<size_t>(columns) * sizeof(T));
  return false;
}

template <class T>
void ByBlocksBackward<T>::add_panel(int64_t begin, int64_t rows, int64_t panel, int64_t first, int worker) {
  std::byte* room = rooms_ + worker * (z_bytes_ + coefficient_bytes_ + product_bytes_);
  auto* z = reinterpret_cast<float*>(room);
  auto* coefficients = reinterpret_cast<T*>(room + z_bytes_);
  std::byte* products = room + z_bytes_ + coefficient_bytes_;
  const int64_t count = at_most(rows_per_item_, rows - first);
  for (int64_t u = 0; u < panels_.columns(panel); u += unit_columns) {
    const int64_t columns = at_most(unit_columns, panels_.columns(panel) - u);
    const T* unit = weight_rows(panel) + u * panels_.C;
    gemm_on_this_thread(ctx_, forward_product(unit, columns, begin + first, count, z), products);
    bool needed = false;
    for (int64_t row = 0; row < count; ++row) {
      needed |= prepare_unit(begin + first + row, panels_.begin(panel) + u, columns, z + row * columns,
                             coefficients + row * columns, mass_[first + row]);
    }
    if (needed)
      gemm_on_this_thread(ctx_, backward_product(unit, columns, count, coefficients, dh_ + first * panels_.C),
                          products);
  }
}

template <class T>
void ByBlocksBackward<T>::run_chunk(int64_t begin, int64_t rows) {
  std::memset(dh_, 0, static_cast<size_t>(rows * panels_.C) * sizeof(float));
  for (int64_t row = 0; row < rows; ++row) mass_[row] = {};
  const int64_t num_items = (rows + rows_per_item_ - 1) / rows_per_item_;
  for (int64_t p = -1; p < panels_.count; ++p) {  // panel p is multiplied while p + 1 is dequantised
    const int64_t next = p + 1, num_rows = p >= 0 ? num_items : 0;
    const int64_t num_dequantize =
        next < panels_.count && !in_place_
            ? (panels_.columns(next) + rows_per_dequantize_item - 1) / rows_per_dequantize_item
            : 0;
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
  for (int64_t begin = 0; begin < rows_; begin += rows_per_chunk)
    run_chunk(begin, at_most(rows_per_chunk, rows_ - begin));
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
