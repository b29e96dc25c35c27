// logp and lse without a gradient. An item of work is a narrow panel of the vocabulary on one thread: dequantise it
// into cache, multiply, reduce its units; nothing of size [rows, V] exists.
#include <cstring>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "ops/common/cpu_simd.h"
#include "ops/linear_cross_entropy/head_panels.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t rows_per_chunk = 512, rows_per_tile = 128;
constexpr int64_t narrow_elements = int64_t{1} << 18;  // a panel in one core's cache

// A thread's room: a dequantised panel, a tile of logits, and what products need.
template <class T>
struct Room {
  T* panel = nullptr;
  float* z = nullptr;
  std::byte* products = nullptr;
};

template <class T>
class LogProbabilities {
 public:
  LogProbabilities(Context& ctx, const LinearCrossEntropyByBlocks& args);
  void run();

 private:
  Gemm product(const T* panel, int64_t columns, int64_t row, int64_t rows, float* z) const {
    return logits_product(rows, columns, panels_.C, h_ + row * panels_.C, panel, z, logits_stride(panels_.width));
  }
  int64_t product_scratch_bytes() const;
  Room<T> room_of(int worker) const;
  void reduce_panel(int64_t begin, int64_t rows, int64_t p, const Room<T>& room);

  Context& ctx_;
  const LinearCrossEntropyByBlocks& args_;
  const Panels panels_;
  const int64_t rows_, capacity_, unit_stride_;
  const bool in_place_;
  T* h_;                         // [capacity, C], padded with zeros
  float *unit_max_, *unit_sum_;  // [capacity, unit_stride]
  float* target_logit_;          // [capacity]
  int64_t panel_bytes_, z_bytes_, product_bytes_;
  std::byte* rooms_;
};

template <class T>
LogProbabilities<T>::LogProbabilities(Context& ctx, const LinearCrossEntropyByBlocks& args)
    : ctx_(ctx),
      args_(args),
      panels_(panels_of(args.weight, narrow_elements)),
      rows_(args.h.shape[0]),
      capacity_(at_most(rows_per_chunk, round_up(rows_, row_granule))),
      unit_stride_(round_up(panels_.units(), 16)),
      in_place_(usable_in_place(args.weight, args.h.dtype)) {
  Arena& arena = ctx.arena;
  h_ = arena.array<T>(capacity_ * panels_.C);
  unit_max_ = arena.array<float>(capacity_ * unit_stride_);
  unit_sum_ = arena.array<float>(capacity_ * unit_stride_);
  target_logit_ = arena.array<float>(capacity_);
  panel_bytes_ = in_place_ ? 0 : round_up(panels_.width * panels_.C * size_of(args.h.dtype), Arena::alignment);
  z_bytes_ = round_up(at_most(rows_per_tile, capacity_) * logits_stride(panels_.width) * 4, Arena::alignment);
  product_bytes_ = round_up(product_scratch_bytes(), Arena::alignment);
  rooms_ = arena.array<std::byte>((panel_bytes_ + z_bytes_ + product_bytes_) * ctx.pool.num_threads());
}

template <class T>
int64_t LogProbabilities<T>::product_scratch_bytes() const {
  int64_t bytes = 0;
  for (int64_t rows = row_granule; rows <= at_most(rows_per_tile, capacity_); rows += row_granule) {
    for (int64_t p : {int64_t{0}, panels_.count - 1}) {
      bytes = at_least(bytes, gemm_scratch_bytes(ctx_, product(nullptr, panels_.columns(p), 0, rows, nullptr)));
    }
  }
  return bytes;
}

template <class T>
Room<T> LogProbabilities<T>::room_of(int worker) const {
  std::byte* room = rooms_ + worker * (panel_bytes_ + z_bytes_ + product_bytes_);
  return {reinterpret_cast<T*>(room), reinterpret_cast<float*>(room + panel_bytes_), room + panel_bytes_ + z_bytes_};
}

template <class T>
void LogProbabilities<T>::reduce_panel(int64_t begin, int64_t rows, int64_t p, const Room<T>& room) {
  const int64_t columns = panels_.columns(p), stride = logits_stride(panels_.width);
  const T* panel = reinterpret_cast<const T*>(args_.weight.data) + panels_.begin(p) * panels_.C;
  if (!in_place_) {
    dequantize_rows(ctx_, args_.weight, panels_.begin(p), columns, room.panel);
    panel = room.panel;
  }
  for (int64_t first = 0; first < rows; first += rows_per_tile) {
    const int64_t count = at_most(rows_per_tile, rows - first);
    gemm_on_this_thread(ctx_, product(panel, columns, first, round_up(count, row_granule), room.z), room.products);
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t target = args_.targets.as<int32_t>()[begin + row] - panels_.begin(p);
      for (int64_t u = 0; u < columns; u += unit_columns) {
        const int64_t width = at_most(unit_columns, columns - u), in_unit = target >= u && target < u + width ? target - u : -1;
        const UnitSum s = unit_sum(room.z + (row - first) * stride + u, width, args_.softcap, in_unit, target_logit_ + row);
        unit_max_[row * unit_stride_ + (panels_.begin(p) + u) / unit_columns] = s.max;
        unit_sum_[row * unit_stride_ + (panels_.begin(p) + u) / unit_columns] = s.sum;
      }
    }
  }
}

template <class T>
void LogProbabilities<T>::run() {
  const int64_t C = panels_.C;
  for (int64_t begin = 0; begin < rows_; begin += rows_per_chunk) {
    const int64_t rows = at_most(rows_per_chunk, rows_ - begin), padding = round_up(rows, row_granule) - rows;
    std::memcpy(h_, args_.h.as<T>() + begin * C, static_cast<size_t>(rows * C) * sizeof(T));
    std::memset(static_cast<void*>(h_ + rows * C), 0, static_cast<size_t>(padding * C) * sizeof(T));
    ctx_.pool.parallel_for(panels_.count, [&](int64_t p, int worker) { reduce_panel(begin, rows, p, room_of(worker)); });
    ctx_.pool.parallel_for(rows, [&](int64_t row, int) {
      reduce_units(unit_max_ + row * unit_stride_, unit_sum_ + row * unit_stride_, panels_.units(), target_logit_[row],
                   args_.lse.as<float>() + begin + row, args_.logp.as<float>() + begin + row);
    });
  }
}

template <class T>
void run_log_probabilities(Context& ctx, const LinearCrossEntropyByBlocks& args) {
  ArenaScope scratch(ctx.arena);
  LogProbabilities<T> head(ctx, args);
  if (ctx.counting()) return;
  check_targets(args.targets, args.weight.rows);
  head.run();
}

}  // namespace

void log_probabilities(Context& ctx, const LinearCrossEntropyByBlocks& args) {
  if (args.h.shape[0] == 0) return;
  if (args.h.dtype == DType::bf16) run_log_probabilities<bf16>(ctx, args);
  else run_log_probabilities<float>(ctx, args);
}

void linear_cross_entropy_by_blocks(Context& ctx, const LinearCrossEntropyByBlocks& args) { log_probabilities(ctx, args); }

}  // namespace sluice::SLUICE_CPU
