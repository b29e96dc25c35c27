// The head on CUDA: rows in chunks, the vocabulary in blocks. See head_rows.cuh for what is kept of a block.
//
// By rows: for each chunk, the blocks in order: logits and coefficients P of some blocks (one product), their rows' sums, and
// acc += P W (the other product); at the end dh = (1 - p_t) dl/dz W[t] - acc / S. 4 M C V operations. On Hopper with bf16
// operands both products run on tensor cores and logits never reach memory (head_sm90.cu); otherwise they pass through
// scratch in float32, and plain_gemm multiplies.
//
// Scratch. With R = rows_per_chunk, at least 2048 and at most 8192 (by blocks 2048; off Hopper 512): P takes R * 8192 * 2
// bytes, that is 32 to 128 MiB; acc R * C * 4 where dh is not float32; sums and small things R * 500. A quantised weight adds
// about 64 MiB (at least one block, 8192 * C * 2) and R * C * 4. Fewer rows than R have more blocks in flight in the same
// room; up to 256 rows take less. Off Hopper P is float32, and a bf16 one lies beside it. None depends on M above 256.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>

#include "ops/gemm/gemm_cublas.cuh"
#include "ops/linear_cross_entropy/head_kernels.cuh"
#include "ops/linear_cross_entropy/head_portable.cuh"
#include "ops/linear_cross_entropy/head_sm90.cuh"
#include "ops/quant/quant.h"

namespace sluice::cuda {
namespace {

constexpr int64_t few_rows = 256;
constexpr int64_t panel_bytes = int64_t{64} << 20;  // of a dequantised part of the weight, about

enum class Purpose { loss, gradient, blocks_backward };

// True when products may read the stored weight itself.
bool usable_in_place(const Weight& weight, DType operands, bool hopper) {
  const bool same = (weight.format == WeightFormat::bf16 && operands == DType::bf16) ||
                    (weight.format == WeightFormat::f32 && operands == DType::f32);
  const auto alignment = static_cast<uintptr_t>(hopper ? 16 : size_of(operands));
  return same && weight.interleaved_head_dim == 0 && reinterpret_cast<uintptr_t>(weight.data) % alignment == 0;
}

// How a call walks its matrix, by shapes and formats alone.
struct Walk {
  int64_t M, V, C;
  bool hopper, in_place;
  Purpose purpose;
  int64_t most_rows;     // of a chunk
  int64_t panel_blocks;  // of the vocabulary, at most at once

  Walk(const Context& ctx, const Weight& weight, const Tensor& h, Purpose for_what, int64_t rows_per_chunk)
      : M(h.shape[0]), V(weight.rows), C(weight.cols), purpose(for_what) {
    hopper = facts_of(ctx).hopper() && h.dtype == DType::bf16 && C % 8 == 0;
    in_place = usable_in_place(weight, h.dtype, hopper);
    most_rows = hopper ? std::clamp<int64_t>(round_up(rows_per_chunk, 256), 2048, 8192) : 512;
    const int64_t fits = panel_bytes / (head_block * C * size_of(h.dtype));
    panel_blocks = std::min(blocks(), !hopper ? 1 : in_place ? 32 : std::max<int64_t>(fits, 1));
  }
  int64_t blocks() const { return ceil_div(V, head_block); }
  // In flight for a chunk of `rows`, and the columns that are.
  int64_t blocks_at_once(int64_t rows) const {
    if (!hopper) return 1;
    return purpose == Purpose::loss ? std::min<int64_t>(panel_blocks, 16)
                                    : std::clamp<int64_t>(most_rows / round_up(rows, 128), 1, panel_blocks);
  }
  int64_t columns_at_once(int64_t rows) const {
    return std::min(blocks_at_once(rows) * head_block, round_up(V, head_tile));
  }
  // Room for all chunks.
  int64_t rows_room() const { return M > few_rows ? most_rows : M; }
  int64_t columns_room() const { return columns_at_once(rows_room()); }
};

class Head {
 public:
  Head(Context& ctx, ArenaScope& scope, const Weight& weight, const Tensor& h, const Tensor& targets, float softcap,
       const Walk& walk, const Tensor& dh);

  // Sums of rows, and with Purpose::gradient acc.
  void run_forward(int64_t begin, int64_t rows);
  template <class Args>
  void finish_forward(int64_t begin, int64_t rows, const Args& args);
  void run_backward(int64_t begin, int64_t rows, const Tensor& lse, const Tensor& g, float skip_below);
  void finish_dh(int64_t begin, int64_t rows);
  void finish_dropped(const Tensor& dropped);

 private:
  bool keeps_p() const { return walk_.purpose != Purpose::loss; }
  HeadTiles part(int64_t begin, int64_t rows, int64_t first_block) const;
  const void* weight_part(const HeadTiles& tiles, int64_t begin);
  void gather(const HeadTiles& tiles, const int32_t* targets, void* rows);
  void logits(const HeadTiles& tiles, int64_t begin, const void* w, bool backward);
  void add_gradient(const HeadTiles& tiles, int64_t begin, const void* w, const BlockScale* scales, bool first);
  float* acc_of(int64_t begin) const { return acc_ != nullptr ? acc_ : dh_.rows(begin, 1).as<float>(); }
  template <class Body>
  void with_operands(Body body) const {
    with_type(h_.dtype, body);
  }

  Context& ctx_;
  const Weight& weight_;
  const Tensor h_, targets_, dh_;
  const float softcap_;
  const Walk& walk_;
  const cudaStream_t stream_;

  void* panel_ = nullptr;                              // part of the weight
  void *target_rows_ = nullptr, *top_rows_ = nullptr;  // [rows, C] of a weight that is dequantised
  float* z_ = nullptr;                                 // off Hopper: logits
  void* p_ = nullptr;
  TileSum* tiles_ = nullptr;
  RowSum* sums_ = nullptr;
  float* at_target_ = nullptr;
  BlockScale* scales_ = nullptr;
  RowCoefficients* coefficients_ = nullptr;
  float* acc_ = nullptr;  // null: dh
  int* turns_ = nullptr;
  Mass *mass_ = nullptr, *total_ = nullptr;
};

Head::Head(Context& ctx, ArenaScope& scope, const Weight& weight, const Tensor& h, const Tensor& targets, float softcap,
           const Walk& walk, const Tensor& dh)
    : ctx_(ctx),
      weight_(weight),
      h_(h),
      targets_(targets),
      dh_(dh),
      softcap_(softcap),
      walk_(walk),
      stream_(stream_of(ctx)) {
  const int64_t rows = walk.rows_room(), room = rows * walk.columns_room(), operand_bytes = size_of(h.dtype);
  tiles_ = scope.array<TileSum>(room / head_tile);
  sums_ = scope.array<RowSum>(rows);
  at_target_ = scope.array<float>(rows);
  if (!walk.hopper) z_ = scope.array<float>(room);
  if (keeps_p()) {
    p_ = z_;
    if (walk.hopper || h.dtype != DType::f32) p_ = scope.array<std::byte>(room * operand_bytes);
    scales_ = scope.array<BlockScale>(rows * walk.blocks_at_once(rows));
    coefficients_ = scope.array<RowCoefficients>(rows);
    // Off Hopper dh may be h, in float32, which is read to the end.
    if (!walk.hopper || dh.dtype != DType::f32) acc_ = scope.array<float>(rows * walk.C);
    if (!walk.in_place) {
      target_rows_ = scope.array<std::byte>(rows * walk.C * operand_bytes);
      if (walk.purpose == Purpose::gradient) top_rows_ = scope.array<std::byte>(rows * walk.C * operand_bytes);
    }
    if (walk.hopper) turns_ = scope.array<int>(head_turns(rows, walk.C));
  }
  if (walk.purpose == Purpose::blocks_backward) {
    mass_ = scope.array<Mass>(rows);
    total_ = scope.array<Mass>(1);
  }
  if (!walk.in_place) {
    const Tensor panel = scope.tensor(h.dtype, {std::min(walk.panel_blocks * head_block, walk.V), walk.C});
    panel_ = panel.data;
    if (ctx.counting()) cuda::dequantize(ctx, {.weight = weight, .out = panel});  // its scratch
  }
  if (mass_ != nullptr && !ctx.counting())
    check_cuda(cudaMemsetAsync(total_, 0, sizeof(Mass), stream_), "linear_cross_entropy");
}

// Some blocks from `first_block` on, against rows [begin, begin + rows).
HeadTiles Head::part(int64_t begin, int64_t rows, int64_t first_block) const {
  const int64_t at_once = walk_.columns_at_once(rows);
  HeadTiles tiles;
  tiles.rows = static_cast<int>(rows);
  tiles.begin = first_block * head_block;
  tiles.columns = static_cast<int>(std::min(walk_.V - tiles.begin, at_once));
  tiles.softcap = softcap_;
  tiles.targets = targets_.as<int32_t>() + begin;
  tiles.p = p_;
  tiles.p_stride = at_once;
  tiles.tiles = tiles_;
  tiles.tile_stride = static_cast<int>(at_once / head_tile);
  tiles.at_target = at_target_;
  return tiles;
}

// [columns, C] of the operands' dtype. What is kept of targets' rows is taken on the way.
const void* Head::weight_part(const HeadTiles& tiles, int64_t begin) {
  if (walk_.in_place) return weight_.data + tiles.begin * walk_.C * size_of(h_.dtype);
  cuda::dequantize(ctx_,
                   {.weight = weight_, .row_begin = tiles.begin, .out = {panel_, h_.dtype, {tiles.columns, walk_.C}}});
  if (target_rows_ != nullptr) gather(tiles, targets_.as<int32_t>() + begin, target_rows_);
  return panel_;
}

// Rows of the dequantised part that are targets; without targets, tops.
void Head::gather(const HeadTiles& tiles, const int32_t* targets, void* rows) {
  with_operands([&]<class T>() {
    gather_rows_of_part<T><<<tiles.rows, 256, 0, stream_>>>(
        walk_.C, tiles.begin, tiles.columns, static_cast<const T*>(panel_), targets, sums_, static_cast<T*>(rows));
  });
  check_launch("linear_cross_entropy: rows of targets");
}

void Head::logits(const HeadTiles& tiles, int64_t begin, const void* w, bool backward) {
  const void* h = h_.rows(begin, tiles.rows).data;
  if (walk_.hopper) {
    head_logits_sm90(ctx_, {.out = tiles, .h = h, .w = w, .C = walk_.C, .backward = backward});
    return;
  }
  plain_gemm(ctx_, {.m = tiles.rows,
                    .n = tiles.columns,
                    .k = walk_.C,
                    .dtype = h_.dtype,
                    .a = h,
                    .lda = walk_.C,
                    .b = w,
                    .ldb = walk_.C,
                    .transpose_b = true,
                    .c = z_,
                    .ldc = tiles.p_stride});
  const dim3 grid(static_cast<unsigned>(ceil_div(tiles.columns, head_tile * warps_per_block)),
                  static_cast<unsigned>(tiles.rows));
  with_operands([&]<class T>() {
    if (backward) tiles_backward<T><<<grid, 32 * warps_per_block, 0, stream_>>>(tiles, z_);
    else tiles_forward<T><<<grid, 32 * warps_per_block, 0, stream_>>>(tiles, z_);
  });
  check_launch("linear_cross_entropy: coefficients");
}

void Head::add_gradient(const HeadTiles& tiles, int64_t begin, const void* w, const BlockScale* scales, bool first) {
  if (walk_.hopper) {
    head_gradient_sm90(ctx_, {.rows = tiles.rows,
                              .columns = tiles.columns,
                              .C = walk_.C,
                              .p = tiles.p,
                              .p_stride = tiles.p_stride,
                              .w = w,
                              .acc = acc_of(begin),
                              .scales = scales,
                              .first = first,
                              .turns = turns_});
    return;
  }
  with_operands([&]<class T>() {
    if (scales != nullptr)
      apply_scales<T><<<tiles.rows, 256, 0, stream_>>>(scales, first, walk_.C, acc_, static_cast<T*>(tiles.p),
                                                       tiles.p_stride, tiles.columns);
  });
  check_launch("linear_cross_entropy: scales");
  plain_gemm(ctx_, {.m = tiles.rows,
                    .n = walk_.C,
                    .k = tiles.columns,
                    .dtype = h_.dtype,
                    .a = tiles.p,
                    .lda = tiles.p_stride,
                    .b = w,
                    .ldb = walk_.C,
                    .c = acc_,
                    .ldc = walk_.C,
                    .add = !first});
}

unsigned blocks_of_rows(int64_t rows, int per_block) { return static_cast<unsigned>(ceil_div(rows, per_block)); }

void Head::run_forward(int64_t begin, int64_t rows) {
  start_rows<<<blocks_of_rows(rows, 256), 256, 0, stream_>>>(static_cast<int>(rows), sums_, at_target_);
  check_launch("linear_cross_entropy: start");
  for (int64_t block = 0; block < walk_.blocks(); block += walk_.blocks_at_once(rows)) {
    const HeadTiles tiles = part(begin, rows, block);
    const void* w = weight_part(tiles, begin);
    logits(tiles, begin, w, false);
    with_operands([&]<class T>() {
      combine_tiles<T>
          <<<blocks_of_rows(rows, warps_per_block), 32 * warps_per_block, 0, stream_>>>(tiles, sums_, scales_);
    });
    check_launch("linear_cross_entropy: sums");
    if (top_rows_ != nullptr) gather(tiles, nullptr, top_rows_);
    if (keeps_p()) add_gradient(tiles, begin, w, scales_, block == 0);
  }
}

template <class Args>
void Head::finish_forward(int64_t begin, int64_t rows, const Args& args) {
  const RowResults to = {args.logp.template as<float>() + begin, args.lse.template as<float>() + begin,
                         args.hit.empty() ? nullptr : args.hit.template as<float>() + begin};
  finish_rows<<<blocks_of_rows(rows, 128), 128, 0, stream_>>>(static_cast<int>(rows), softcap_, sums_, at_target_, to,
                                                              coefficients_);
  check_launch("linear_cross_entropy: log-probabilities");
}

void Head::run_backward(int64_t begin, int64_t rows, const Tensor& lse, const Tensor& g, float skip_below) {
  const auto num_rows = static_cast<int>(rows);
  start_rows<<<blocks_of_rows(rows, 256), 256, 0, stream_>>>(num_rows, nullptr, at_target_);
  if (skip_below > 0)
    check_cuda(cudaMemsetAsync(mass_, 0, static_cast<size_t>(rows) * sizeof(Mass), stream_), "linear_cross_entropy");
  for (int64_t block = 0; block < walk_.blocks(); block += walk_.blocks_at_once(rows)) {
    HeadTiles tiles = part(begin, rows, block);
    tiles.lse = lse.as<float>() + begin;
    tiles.g = g.as<float>() + begin;
    tiles.skip_below = skip_below;
    const void* w = weight_part(tiles, begin);
    logits(tiles, begin, w, true);
    if (skip_below > 0) {
      add_mass<<<blocks_of_rows(rows, warps_per_block), 32 * warps_per_block, 0, stream_>>>(tiles, mass_);
      check_launch("linear_cross_entropy: mass");
    }
    add_gradient(tiles, begin, w, nullptr, block == 0);
  }
  if (skip_below > 0) add_total<<<1, 32, 0, stream_>>>(num_rows, mass_, total_);
  finish_rows_backward<<<blocks_of_rows(rows, 256), 256, 0, stream_>>>(num_rows, at_target_, coefficients_);
  check_launch("linear_cross_entropy: coefficients of targets");
}

void Head::finish_dh(int64_t begin, int64_t rows) {
  const int64_t C = walk_.C;
  const Tensor dh = dh_.rows(begin, rows);
  with_operands([&]<class T>() {
    const WeightRows<T> w = {walk_.in_place ? reinterpret_cast<const T*>(weight_.data) : nullptr,
                             static_cast<const T*>(target_rows_), static_cast<const T*>(top_rows_)};
    with_type(dh.dtype, [&]<class Out>() {
      finish_gradient<T, Out><<<static_cast<unsigned>(rows), 256, 0, stream_>>>(
          C, walk_.V, coefficients_, acc_of(begin), w, targets_.as<int32_t>() + begin, static_cast<Out*>(dh.data));
    });
  });
  check_launch("linear_cross_entropy: dh");
}

void Head::finish_dropped(const Tensor& dropped) {
  cuda::finish_dropped<<<1, 1, 0, stream_>>>(total_, dropped.as<float>());
  check_launch("linear_cross_entropy: dropped");
}

// Targets that the host can read are checked here. Others that do not exist make the row's results NaN: to look would be
// to wait for the device.
void check_targets(const Tensor& targets, int64_t V) {
  cudaPointerAttributes found{};
  check_cuda(cudaPointerGetAttributes(&found, targets.data), "linear_cross_entropy: looking at targets");
  if (found.type != cudaMemoryTypeHost) return;
  for (int64_t m = 0; m < targets.shape[0]; ++m) {
    const int32_t target = static_cast<const int32_t*>(found.hostPointer)[m];
    SLUICE_ASSERT(target >= 0 && target < V);
  }
}

void log_probabilities(Context& ctx, const LinearCrossEntropyByBlocks& args) {
  const Walk walk(ctx, args.weight, args.h, Purpose::loss, 0);
  if (walk.M == 0) return;
  ArenaScope scope(ctx.arena);
  Head head(ctx, scope, args.weight, args.h, args.targets, args.softcap, walk, {});
  if (ctx.counting()) return;
  check_targets(args.targets, walk.V);
  for (int64_t begin = 0; begin < walk.M; begin += walk.most_rows) {
    const int64_t rows = std::min(walk.most_rows, walk.M - begin);
    head.run_forward(begin, rows);
    head.finish_forward(begin, rows, args);
  }
}

constexpr int64_t most_matvec_rows = 16;

// Many rows: matrix products with parts of the weight.
void logits_by_products(Context& ctx, const HeadLogits& args) {
  const Weight& weight = args.weight;
  const int64_t V = weight.rows, C = weight.cols;
  const bool in_place = usable_in_place(weight, args.h.dtype, false);
  const int64_t step = in_place ? V : std::min(V, std::max<int64_t>(panel_bytes / (C * size_of(args.h.dtype)), 256));
  ArenaScope scope(ctx.arena);
  const Tensor panel = in_place ? Tensor{} : scope.tensor(args.h.dtype, {step, C});
  if (ctx.counting() && !in_place) cuda::dequantize(ctx, {.weight = weight, .out = panel});
  if (ctx.counting()) return;
  for (int64_t begin = 0; begin < V; begin += step) {
    const int64_t columns = std::min(step, V - begin);
    if (!in_place) cuda::dequantize(ctx, {.weight = weight, .row_begin = begin, .out = panel.rows(0, columns)});
    plain_gemm(ctx, {.m = args.h.shape[0],
                     .n = columns,
                     .k = C,
                     .dtype = args.h.dtype,
                     .a = args.h.data,
                     .lda = C,
                     .b = in_place ? static_cast<const void*>(weight.data) : panel.data,
                     .ldb = C,
                     .transpose_b = true,
                     .c = args.logits.as<float>() + begin,
                     .ldc = V});
  }
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
    return;
  }
  const Walk walk(ctx, args.weight, args.h, Purpose::gradient, args.rows_per_chunk);
  if (walk.M == 0) return;
  ArenaScope scope(ctx.arena);
  Head head(ctx, scope, args.weight, args.h, args.targets, args.softcap, walk, args.dh);
  if (ctx.counting()) return;
  check_targets(args.targets, walk.V);
  for (int64_t begin = 0; begin < walk.M; begin += walk.most_rows) {
    const int64_t rows = std::min(walk.most_rows, walk.M - begin);
    head.run_forward(begin, rows);
    head.finish_forward(begin, rows, args);
    head.finish_dh(begin, rows);
  }
}

void linear_cross_entropy_by_blocks(Context& ctx, const LinearCrossEntropyByBlocks& args) {
  log_probabilities(ctx, args);
}

void linear_cross_entropy_by_blocks_backward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args) {
  const Walk walk(ctx, args.weight, args.h, Purpose::blocks_backward, 0);
  if (walk.M == 0) {
    if (!args.dropped.empty() && !ctx.counting()) {
      check_cuda(cudaMemsetAsync(args.dropped.data, 0, sizeof(float), stream_of(ctx)), "linear_cross_entropy");
    }
    return;
  }
  ArenaScope scope(ctx.arena);
  Head head(ctx, scope, args.weight, args.h, args.targets, args.softcap, walk, args.dh);
  if (ctx.counting()) return;
  check_targets(args.targets, walk.V);
  for (int64_t begin = 0; begin < walk.M; begin += walk.most_rows) {
    const int64_t rows = std::min(walk.most_rows, walk.M - begin);
    head.run_backward(begin, rows, args.lse, args.g, args.skip_below);
    head.finish_dh(begin, rows);
  }
  if (!args.dropped.empty()) head.finish_dropped(args.dropped);
}

void head_logits(Context& ctx, const HeadLogits& args) {
  const int64_t count = args.logits.shape.numel();
  if (count == 0) return;
  if (args.h.shape[0] <= most_matvec_rows)
    cuda::weight_matvec(ctx, {.weight = args.weight, .x = args.h, .y = args.logits});
  else logits_by_products(ctx, args);
  if (args.softcap == 0 || ctx.counting()) return;
  cap_all<<<static_cast<unsigned>(ceil_div(count, 256)), 256, 0, stream_of(ctx)>>>(count, args.softcap,
                                                                                   args.logits.as<float>());
  check_launch("head_logits");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(linear_cross_entropy_by_rows, LinearCrossEntropyByRows)
SLUICE_CUDA_ENTRY(linear_cross_entropy_by_blocks, LinearCrossEntropyByBlocks)
SLUICE_CUDA_ENTRY(linear_cross_entropy_by_blocks_backward, LinearCrossEntropyByBlocksBackward)
SLUICE_CUDA_ENTRY(head_logits, HeadLogits)
