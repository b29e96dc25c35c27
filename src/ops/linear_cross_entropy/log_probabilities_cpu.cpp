// logp and lse without a gradient. An item of work is a narrow panel of the vocabulary on one thread: dequantise it
// into cache, multiply, reduce its units; nothing of size [rows, V] exists.
#include <immintrin.h>

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
  Gemm product(const T* panel, int64_t p, int64_t row, int64_t rows, float* z) const {
    return logits_product(rows, panels_.columns(p), panels_.C, args_.h.as<T>() + row * panels_.C, panel, z);
  }
  int64_t product_scratch_bytes() const;
  Room<T> room_of(int worker) const;
  void reduce_panel(int64_t begin, int64_t rows, int64_t p, const Room<T>& room);

  Context& ctx_;
  const LinearCrossEntropyByBlocks& args_;
  const Panels panels_;
  const int64_t rows_, capacity_;
  const bool in_place_;
  UnitSums sums_;  // of `capacity` rows
  int64_t panel_bytes_, z_bytes_, product_bytes_;
  std::byte* rooms_;
};

template <class T>
LogProbabilities<T>::LogProbabilities(Context& ctx, const LinearCrossEntropyByBlocks& args)
    : ctx_(ctx),
      args_(args),
      panels_(panels_of(args.weight, narrow_elements)),
      rows_(args.h.shape[0]),
      capacity_(at_most(rows_per_chunk, rows_)),
      in_place_(usable_in_place(args.weight, args.h.dtype)) {
  sums_ = make_unit_sums(ctx.arena, capacity_, panels_);
  panel_bytes_ = in_place_ ? 0 : round_up(panels_.width * panels_.C * size_of(args.h.dtype), Arena::alignment);
  z_bytes_ = round_up(at_most(rows_per_tile, capacity_) * panels_.width * 4, Arena::alignment);
  product_bytes_ = round_up(product_scratch_bytes(), Arena::alignment);
  rooms_ = ctx.arena.array<std::byte>((panel_bytes_ + z_bytes_ + product_bytes_) * ctx.pool.num_threads());
}

template <class T>
int64_t LogProbabilities<T>::product_scratch_bytes() const {
  int64_t bytes = 0;
  for (int64_t rows : {at_most(rows_per_tile, capacity_), rows_ % rows_per_tile}) {
    for (int64_t p : {int64_t{0}, panels_.count - 1}) {
      bytes = at_least(bytes, gemm_scratch_bytes(ctx_, product(nullptr, p, 0, rows, nullptr)));
    }
  }
  return bytes;
}

template <class T>
Room<T> LogProbabilities<T>::room_of(int worker) const {
  std::byte* room = rooms_ + worker * (panel_bytes_ + z_bytes_ + product_bytes_);
  return {reinterpret_cast<T*>(room), reinterpret_cast<float*>(room + panel_bytes_), room + panel_bytes_ + z_bytes_};
}

// Rows [begin, begin + rows) of the batch against panel p.
template <class T>
void LogProbabilities<T>::reduce_panel(int64_t begin, int64_t rows, int64_t p, const Room<T>& room) {
  const int64_t columns = panels_.columns(p);
  const T* panel = reinterpret_cast<const T*>(args_.weight.data) + panels_.begin(p) * panels_.C;
  if (!in_place_) {
    dequantize_rows(ctx_, args_.weight, panels_.begin(p), columns, room.panel);
    panel = room.panel;
  }
  for (int64_t first = 0; first < rows; first += rows_per_tile) {
    const int64_t count = at_most(rows_per_tile, rows - first);
    gemm_on_this_thread(ctx_, product(panel, p, begin + first, count, room.z), room.products);
    for (int64_t row = first; row < first + count; ++row) {
      reduce_logits(room.z + (row - first) * columns, panels_.begin(p), columns, args_.softcap,
                    args_.targets.as<int32_t>()[begin + row], row, sums_, static_cast<float*>(nullptr));
    }
  }
}

template <class T>
void LogProbabilities<T>::run() {
  for (int64_t begin = 0; begin < rows_; begin += rows_per_chunk) {
    const int64_t rows = at_most(rows_per_chunk, rows_ - begin);
    ctx_.pool.parallel_for(panels_.count,
                           [&](int64_t p, int worker) { reduce_panel(begin, rows, p, room_of(worker)); });
    for (int64_t row = 0; row < rows; ++row) {
      finish_row(sums_, panels_.units(), row, results_of(args_.lse, args_.logp, args_.hit, begin + row));
    }
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

void linear_cross_entropy_by_blocks(Context& ctx, const LinearCrossEntropyByBlocks& args) {
  log_probabilities(ctx, args);
}

}  // namespace sluice::SLUICE_CPU
