// The linear layer on CUDA: with bf16 on Hopper the low-rank product rides along in the main product
// (ops/gemm/gemm_sm90.cuh); elsewhere, and for shapes that its loads refuse, products go to ops/gemm/gemm_cublas.cuh by
// blocks of rows and a kernel finishes each block.
#include <algorithm>

#include "ops/gemm/gemm_cublas.cuh"
#include "ops/gemm/gemm_sm90.cuh"
#include "ops/linear/linear.h"
#include "ops/linear/linear_adapter.cuh"
#include "ops/linear/linear_thin_backward_sm90.cuh"
#include "ops/linear/linear_thin_forward_sm90.cuh"
#include "ops/quant/quant.h"

namespace sluice::cuda {

namespace {

constexpr int64_t panel_bytes = 64 << 20;  // of dequantised weight, and of float32 products, at a time
constexpr int64_t group_bytes = 32 << 20;  // of each kind of scratch that holds rows or chunks
constexpr int64_t max_group_rows = 65536;
constexpr int threads = 256;

// [0, total) in pieces of `width`; the last may be shorter.
struct Pieces {
  int64_t total, width;
  int64_t count() const { return ceil_div(total, width); }
  int64_t begin(int64_t i) const { return i * width; }
  int64_t size(int64_t i) const { return std::min(width, total - i * width); }
};

// As many as fit in `bytes`, a multiple of `unit`, at least one unit; all of them where that is enough.
Pieces pieces_of(int64_t total, int64_t bytes, int64_t bytes_each, int64_t unit) {
  const int64_t width = std::max(unit, bytes / std::max<int64_t>(bytes_each, 1) / unit * unit);
  return {total, std::min(width, total)};
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether the weight's bytes can be an operand as they are.
bool used_directly(const Weight& w, DType dtype, bool hopper) {
  const bool same = (w.format == WeightFormat::f32 && dtype == DType::f32) ||
                    (w.format == WeightFormat::bf16 && dtype == DType::bf16);
  return same && w.interleaved_head_dim == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % static_cast<uintptr_t>(hopper ? 16 : size_of(dtype)) == 0;
}

const std::byte* at(const void* data, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + elements * size_of(dtype);
}
std::byte* at(void* data, int64_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + elements * size_of(dtype);
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(items, threads), 1, 1 << 20));
}

// y[:, columns] of some rows = [ratio *] c + bias + residual, rounded once.
template <class T>
__global__ void __launch_bounds__(threads)
    finish_forward_kernel(int64_t rows, int64_t n, const float* c, const float* ratio, const float* bias,
                          const T* residual, T* y, int64_t ldy) {
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < rows * n; i += int64_t{gridDim.x} * threads) {
    const int64_t row = i / n, col = i - row * n;
    float v = c[i];
    if (ratio != nullptr) v = __fmul_rn(v, ratio[col]);
    if (bias != nullptr) v = __fadd_rn(v, bias[col]);
    if (residual != nullptr) v = __fadd_rn(v, to_float(residual[row * ldy + col]));
    y[row * ldy + col] = from_float<T>(v);
  }
}

// dx[:, columns] of some rows (+)= c + keep * low, rounded once.
template <class D>
__global__ void __launch_bounds__(threads)
    finish_backward_kernel(int64_t rows, int64_t n, const float* c, const float* low, const uint32_t* keep,
                           int64_t words, int64_t first_col, bool add, D* dx, int64_t ldx) {
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < rows * n; i += int64_t{gridDim.x} * threads) {
    const int64_t row = i / n, col = i - row * n;
    float v = c[i];
    if (low != nullptr && (keep[row * words + (first_col + col) / 32] >> ((first_col + col) % 32) & 1U) != 0)
      v += low[i];
    D* const to = dx + row * ldx + col;
    *to = from_float<D>(add ? to_float(*to) + v : v);
  }
}

// What both directions take for the adapter: its operands, and groups of rows for what is formed of x.
template <class Args>
AdapterOperands operands_of(Context& ctx, const Args& args, DType dtype, bool backward) {
  if (args.lora_a.empty()) return {};
  return adapter_operands(ctx, {args.lora_a, args.lora_b, backward ? Tensor{} : args.magnitude, args.norm}, args.scale,
                          args.dropout.p, dtype, backward, backward ? ceil_div(args.x.shape[0], row_chunk) : 0);
}

// x of some rows with dropout applied, in scratch; x itself without.
struct Dropped {
  void* xd = nullptr;

  Dropped(Context& ctx, const Dropout& d, DType dtype, int64_t rows, int64_t cols) {
    if (d.p > 0) xd = ctx.arena.bytes(rows * cols * size_of(dtype));
  }
  // `keep` may be null.
  const void* rows(const Context& ctx, Dropout d, DType dtype, const void* x, int64_t first, int64_t count,
                   int64_t cols, uint32_t* keep) const {
    if (xd == nullptr) return at(x, first * cols, dtype);
    d.row_begin += first;
    drop(ctx, d, dtype, at(x, first * cols, dtype), count, cols,
         keep != nullptr ? keep + first * keep_words(cols) : nullptr, xd);
    return xd;
  }
};

// Of rows from `first` on.
Dropout from_row(Dropout d, int64_t first) {
  d.row_begin += first;
  return d;
}

// Whether linear_thin_sm90.cuh takes an adapter.
bool is_thin(const AdapterOperands& ad, bool hopper) { return hopper && ad.padded <= thin_sm90::max_ranks; }

// As backward_on_hopper, so that x A^T is formed by the same kernel in both.
bool forward_on_hopper(const Context& ctx, const LinearForward& args) {
  return args.x.dtype == DType::bf16 && facts_of(ctx).hopper() && args.weight.cols % 8 == 0 &&
         args.weight.rows % 8 == 0 && is_aligned(args.x.data);
}

// xa [N, padded] = round(factor * xd A^T)
void low_of_x(Context& ctx, const LinearForward& args, const AdapterOperands& ad, bool hopper, void* xa) {
  const int64_t N = args.x.shape[0], in = ad.in;
  ArenaScope scope(ctx.arena);
  if (is_thin(ad, hopper)) {
    if (ctx.counting()) return;
    const thin_sm90::Operand x{.x = args.x.data, .cols = in, .w = ad.a, .dropout = args.dropout, .low = xa};
    return thin_sm90::forward(facts_of(ctx), N, ad.padded, ad.factor, x);
  }
  const bool masked = args.dropout.p > 0;
  const int64_t each = std::max(adapter_pass_sums(hopper, 1, ad.padded) * 4, masked ? in * size_of(ad.dtype) : 0);
  const Pieces groups = pieces_of(N, group_bytes, std::max(each, group_bytes / max_group_rows), row_chunk);
  auto* const sums = scope.array<float>(adapter_pass_sums(hopper, groups.width, ad.padded));
  const Dropped dropped(ctx, args.dropout, ad.dtype, groups.width, in);
  if (ctx.counting()) return;
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t first = groups.begin(g), count = groups.size(g);
    adapter_pass(ctx, hopper,
                 {.dtype = ad.dtype,
                  .x = dropped.rows(ctx, args.dropout, ad.dtype, args.x.data, first, count, in, nullptr),
                  .rows = count,
                  .cols = in,
                  .R = ad.R,
                  .padded = ad.padded,
                  .w = ad.a,
                  .factor = ad.factor,
                  .low = at(xa, first * ad.padded, ad.dtype),
                  .sums = sums});
  }
}

template <class T>
void finish_forward(const Context& ctx, const LinearForward& args, const float* ratio, int64_t first, int64_t rows,
                    int64_t col, int64_t n, const float* c) {
  const int64_t out = args.weight.rows, offset = first * out + col;
  finish_forward_kernel<T><<<blocks_for(rows * n), threads, 0, stream_of(ctx)>>>(
      rows, n, c, ratio != nullptr ? ratio + col : nullptr, args.bias.empty() ? nullptr : args.bias.as<float>() + col,
      args.residual.empty() ? nullptr : static_cast<const T*>(args.residual.data) + offset,
      static_cast<T*>(args.y.data) + offset, out);
  check_launch("linear_forward");
}

}  // namespace

void linear_forward(Context& ctx, const LinearForward& args) {
  const Weight& w = args.weight;
  const DType dtype = args.x.dtype;
  const int64_t N = args.x.shape[0], in = w.cols, out = w.rows;
  const bool hopper = forward_on_hopper(ctx, args);
  ArenaScope scope(ctx.arena);
  const AdapterOperands ad = operands_of(ctx, args, dtype, false);
  void* const xa = args.xa.empty() ? ctx.arena.bytes(N * ad.padded * size_of(dtype)) : args.xa.data;
  if (ad.R > 0) low_of_x(ctx, args, ad, hopper, xa);

  const bool direct = used_directly(w, dtype, hopper);
  const Pieces panels = direct ? Pieces{out, out} : pieces_of(out, panel_bytes, in * size_of(dtype), 256);
  const Pieces rows = pieces_of(N, panel_bytes, panels.width * 4, row_chunk);
  void* const panel = ctx.arena.bytes(direct ? 0 : panels.width * in * size_of(dtype));
  auto* const c = scope.array<float>(hopper ? 0 : rows.width * panels.width);
  for (int64_t p = 0; p < panels.count(); ++p) {
    const int64_t col = panels.begin(p), n = panels.size(p);
    if (!direct) cuda::dequantize(ctx, {.weight = w, .row_begin = col, .out = {panel, dtype, {n, in}}});
    if (ctx.counting()) return;
    const void* const weights = direct ? w.data : panel;
    if (hopper) {
      const GemmSm90 g{.M = N,
                       .N = n,
                       .K = in,
                       .a = args.x.data,
                       .lda = in,
                       .b = weights,
                       .ldb = in,
                       .R = ad.padded,
                       .a2 = xa,
                       .lda2 = ad.padded,
                       .b2 = at(ad.b, col * ad.padded, dtype),
                       .ldb2 = ad.padded};
      gemm_sm90<Major::k, Major::k, LinearEpilogue>(
          ctx, g,
          {.y = at(args.y.data, col, dtype),
           .ldy = out,
           .col_scale = ad.ratio != nullptr ? ad.ratio + col : nullptr,
           .bias = args.bias.empty() ? nullptr : args.bias.as<float>() + col,
           .residual = args.residual.empty() ? nullptr : static_cast<const __nv_bfloat16*>(args.residual.data) + col,
           .ldr = out},
          "linear_forward");
      continue;
    }
    for (int64_t b = 0; b < rows.count(); ++b) {
      const int64_t first = rows.begin(b), m = rows.size(b);
      plain_gemm(ctx, {.m = m,
                       .n = n,
                       .k = in,
                       .dtype = dtype,
                       .a = at(args.x.data, first * in, dtype),
                       .lda = in,
                       .b = weights,
                       .ldb = in,
                       .transpose_b = true,
                       .c = c,
                       .ldc = n});
      if (ad.R > 0) {
        plain_gemm(ctx, {.m = m,
                         .n = n,
                         .k = ad.padded,
                         .dtype = dtype,
                         .a = at(xa, first * ad.padded, dtype),
                         .lda = ad.padded,
                         .b = at(ad.b, col * ad.padded, dtype),
                         .ldb = ad.padded,
                         .transpose_b = true,
                         .c = c,
                         .ldc = n,
                         .add = true});
      }
      if (dtype == DType::bf16) finish_forward<__nv_bfloat16>(ctx, args, ad.ratio, first, m, col, n, c);
      else finish_forward<float>(ctx, args, ad.ratio, first, m, col, n, c);
    }
  }
}

namespace {

// Both extents: dy is an operand with out columns, W and x have in.
bool backward_on_hopper(const Context& ctx, const LinearBackward& args) {
  return args.dy.dtype == DType::bf16 && facts_of(ctx).hopper() && args.weight.cols % 8 == 0 &&
         args.weight.rows % 8 == 0 && is_aligned(args.dy.data) && (args.x.empty() || is_aligned(args.x.data));
}

Partials room_for_partials(Context& ctx, const LinearBackward& args, const AdapterOperands& ad, int64_t chunks) {
  return {.R = static_cast<int>(ad.R),
          .padded = static_cast<int>(ad.padded),
          .in = static_cast<int>(ad.in),
          .out = static_cast<int>(ad.out),
          .a = ctx.arena.array<float>(chunks * ad.padded * ad.in),
          .b = ctx.arena.array<float>(chunks * ad.padded * ad.out),
          .da = args.dlora_a.as<float>(),
          .db = args.dlora_b.as<float>()};
}

// dA += dyb^T xd, dB += dy^T xa; gives dyb [N, padded] and keep [N, words] for dx. With `leave_last` the sums of the last
// group of rows are left to the caller; they lie in scratch of its scope.
Partials thin_adapter_gradient(Context& ctx, const LinearBackward& args, const AdapterOperands& ad, void* dyb,
                               uint32_t* keep, bool leave_last) {
  const DType dtype = ad.dtype;
  const int64_t N = args.dy.shape[0], in = ad.in, out = ad.out;
  const int64_t each = ceil_div(ad.padded * (in + out) * 4, row_chunk);
  const Pieces groups = pieces_of(N, group_bytes, std::max(each, group_bytes / max_group_rows), row_chunk);
  const int64_t chunks = ceil_div(groups.width, row_chunk);
  Partials partials = room_for_partials(ctx, args, ad, chunks);
  const DeviceFacts& facts = facts_of(ctx);
  auto* const shares = ctx.arena.array<float>(thin_sm90::shares_floats(facts, groups.width));
  const bool forms_xa = args.xa.empty();
  void* const xa = forms_xa ? ctx.arena.bytes(N * ad.padded * size_of(dtype)) : args.xa.data;
  if (ctx.counting()) return {};
  if (forms_xa) {
    thin_sm90::forward(facts, N, ad.padded, ad.factor,
                       {.x = args.x.data, .cols = in, .w = ad.a, .dropout = args.dropout, .low = xa});
  }
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t first = groups.begin(g), count = groups.size(g);
    const thin_sm90::Operand of_dy{.x = at(args.dy.data, first * out, dtype),
                                   .cols = out,
                                   .w = ad.b_t,
                                   .low = at(dyb, first * ad.padded, dtype),
                                   .partials = partials.b};
    const thin_sm90::Operand of_x{.x = at(args.x.data, first * in, dtype),
                                  .cols = in,
                                  .dropout = from_row(args.dropout, first),
                                  .keep = keep != nullptr ? keep + first * keep_words(in) : nullptr,
                                  .partials = partials.a};
    thin_sm90::backward(facts, count, ad.padded, ad.factor, of_dy, of_x, at(xa, first * ad.padded, dtype), shares,
                        ad.zeros + first / row_chunk);
    partials.chunks = static_cast<int>(ceil_div(count, row_chunk));
    if (!leave_last || g + 1 < groups.count()) add_partials(ctx, partials);
  }
  return partials;
}

// The same for any rank and GPU: a pass for each of x and dy, and without xa one more of the narrower; where a pass is plain products, dy's
// reads it twice.
Partials adapter_gradient(Context& ctx, const LinearBackward& args, const AdapterOperands& ad, bool hopper, void* dyb,
                          uint32_t* keep, bool leave_last) {
  const DType dtype = ad.dtype;
  const int64_t N = args.dy.shape[0], in = ad.in, out = ad.out, size = size_of(dtype);
  const bool masked = args.dropout.p > 0, forms_xa = args.xa.empty();
  const int64_t sums_each = adapter_pass_sums(hopper, 1, ad.padded) * 4;
  const int64_t partials_each = ceil_div(ad.padded * (in + out) * 4, row_chunk);
  const int64_t each = std::max({sums_each, partials_each, masked ? in * size : 0});
  const Pieces groups = pieces_of(N, group_bytes, std::max(each, group_bytes / max_group_rows), row_chunk);
  const int64_t chunks = ceil_div(groups.width, row_chunk);
  auto* const sums = ctx.arena.array<float>(adapter_pass_sums(hopper, groups.width, ad.padded));
  Partials partials = room_for_partials(ctx, args, ad, chunks);
  void* const formed = ctx.arena.bytes(forms_xa ? groups.width * ad.padded * size : 0);
  const Dropped dropped(ctx, args.dropout, dtype, groups.width, in);
  if (ctx.counting()) return {};
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t first = groups.begin(g), count = groups.size(g);
    void* const low_dy = at(dyb, first * ad.padded, dtype);
    void* const xa = forms_xa ? formed : at(args.xa.data, first * ad.padded, dtype);
    const AdapterPass common{
        .dtype = dtype, .rows = count, .R = ad.R, .padded = ad.padded, .factor = ad.factor, .sums = sums};
    AdapterPass of_x = common, of_dy = common;
    of_x.x = dropped.rows(ctx, args.dropout, dtype, args.x.data, first, count, in, keep);
    of_x.cols = in;
    of_dy.x = at(args.dy.data, first * out, dtype);
    of_dy.cols = out;
    const auto run = [&](const AdapterPass& pass, bool low, bool gradient) {
      AdapterPass p = pass;
      const bool is_x = &pass == &of_x;
      if (low) {
        p.w = is_x ? ad.a : ad.b_t;
        p.low = is_x ? xa : low_dy;
      }
      if (gradient) {
        p.other = is_x ? low_dy : xa;
        p.partials = is_x ? partials.a : partials.b;
      }
      adapter_pass(ctx, hopper, p);
    };
    const bool x_first = !forms_xa || in <= out;
    const AdapterPass &first_pass = x_first ? of_x : of_dy, &second_pass = x_first ? of_dy : of_x;
    if (forms_xa) run(first_pass, true, false);
    run(second_pass, true, true);
    run(first_pass, false, true);
    partials.chunks = static_cast<int>(ceil_div(count, row_chunk));
    if (!leave_last || g + 1 < groups.count()) add_partials(ctx, partials);
  }
  return partials;
}

template <class D>
void finish_backward(const Context& ctx, const LinearBackward& args, int64_t first, int64_t rows, int64_t col,
                     int64_t n, const float* c, const float* low, const uint32_t* keep) {
  const int64_t in = args.weight.cols, words = keep_words(in);
  finish_backward_kernel<D><<<blocks_for(rows * n), threads, 0, stream_of(ctx)>>>(
      rows, n, c, low, keep != nullptr ? keep + first * words : nullptr, words, col, args.write == Write::add,
      static_cast<D*>(args.dx.data) + first * in + col, in);
  check_launch("linear_backward");
}

// An epilogue whose kernel adds an adapter's partial sums meanwhile.
template <class Epilogue>
struct Adding : Epilogue {
  struct Params : Epilogue::Params {
    Partials partials;
  };
  __device__ static void beside(const Params& p, int thread, int all_threads) {
    if (p.partials.chunks > 0) add_partials(p.partials, thread, all_threads);
  }
};

// dx = dy W + mask(dyb A), by panels of input columns, so that no sum is split. `partials` (on Hopper, or none) are
// added beside the first product.
void input_gradient(Context& ctx, const LinearBackward& args, const AdapterOperands& ad, bool hopper, const void* dyb,
                    const uint32_t* keep, const Partials& partials) {
  const Weight& w = args.weight;
  const DType dtype = args.dy.dtype;
  const int64_t N = args.dy.shape[0], in = w.cols, out = w.rows, words = keep_words(in);
  ArenaScope scope(ctx.arena);
  const bool masked = keep != nullptr;
  const bool direct = used_directly(w, dtype, hopper);
  const Pieces panels = direct ? Pieces{in, in} : pieces_of(in, panel_bytes, out * size_of(dtype), 256);
  const Pieces rows = pieces_of(N, panel_bytes, panels.width * 4, row_chunk);
  void* const panel = ctx.arena.bytes(direct ? 0 : out * panels.width * size_of(dtype));
  auto* const c = scope.array<float>(hopper ? 0 : rows.width * panels.width);
  auto* const low = scope.array<float>(hopper || !masked ? 0 : rows.width * panels.width);
  for (int64_t p = 0; p < panels.count(); ++p) {
    const int64_t col = panels.begin(p), n = panels.size(p);
    if (!direct) cuda::dequantize(ctx, {.weight = w, .col_begin = col, .out = {panel, dtype, {out, n}}});
    if (ctx.counting()) return;
    const void* const weights = direct ? w.data : panel;
    if (hopper) {
      const GemmSm90 g{.M = N,
                       .N = n,
                       .K = out,
                       .a = args.dy.data,
                       .lda = out,
                       .b = weights,
                       .ldb = n,
                       .R = ad.padded,
                       .a2 = dyb,
                       .lda2 = ad.padded,
                       .b2 = at(ad.a, col, dtype),
                       .ldb2 = in};
      const LinearEpilogue::Params params{
          .y = at(args.dx.data, col, args.dx.dtype),
          .ldy = in,
          .dtype = args.dx.dtype,
          .add = args.write == Write::add,
          .keep = masked ? keep + col / 32 : nullptr,  // panels begin at multiples of 256
          .keep_words = words};
      const Partials beside = p == 0 ? partials : Partials{};
      if (masked) gemm_sm90<Major::k, Major::mn, Adding<MaskedEpilogue>>(ctx, g, {{params}, beside}, "linear_backward");
      else gemm_sm90<Major::k, Major::mn, Adding<LinearEpilogue>>(ctx, g, {params, beside}, "linear_backward");
      continue;
    }
    for (int64_t b = 0; b < rows.count(); ++b) {
      const int64_t first = rows.begin(b), m = rows.size(b);
      plain_gemm(ctx, {.m = m,
                       .n = n,
                       .k = out,
                       .dtype = dtype,
                       .a = at(args.dy.data, first * out, dtype),
                       .lda = out,
                       .b = weights,
                       .ldb = n,
                       .c = c,
                       .ldc = n});
      if (ad.R > 0) {
        plain_gemm(ctx, {.m = m,
                         .n = n,
                         .k = ad.padded,
                         .dtype = dtype,
                         .a = at(dyb, first * ad.padded, dtype),
                         .lda = ad.padded,
                         .b = at(ad.a, col, dtype),
                         .ldb = in,
                         .c = masked ? low : c,
                         .ldc = n,
                         .add = !masked});
      }
      if (args.dx.dtype == DType::bf16)
        finish_backward<__nv_bfloat16>(ctx, args, first, m, col, n, c, masked ? low : nullptr, keep);
      else finish_backward<float>(ctx, args, first, m, col, n, c, masked ? low : nullptr, keep);
    }
  }
}

void plain_backward(Context& ctx, const LinearBackward& args) {
  const bool hopper = backward_on_hopper(ctx, args);
  ArenaScope scope(ctx.arena);
  const AdapterOperands ad = operands_of(ctx, args, args.dy.dtype, true);
  void* const dyb = ctx.arena.bytes(args.dy.shape[0] * ad.padded * size_of(args.dy.dtype));
  uint32_t* keep = nullptr;
  if (ad.R > 0 && args.dropout.p > 0) keep = ctx.arena.array<uint32_t>(args.dy.shape[0] * keep_words(ad.in));
  // With many rows the partial sums are added by threads that idle in the product for dx. They stay in scratch until
  // then; a product by panels would need that.
  const bool beside = hopper && used_directly(args.weight, args.dy.dtype, hopper) && !args.dx.empty() &&
                      args.dy.shape[0] >= 8 * row_chunk;
  {
    ArenaScope inner(ctx.arena);
    Partials partials;
    if (ad.R > 0 && is_thin(ad, hopper)) partials = thin_adapter_gradient(ctx, args, ad, dyb, keep, beside);
    else if (ad.R > 0) partials = adapter_gradient(ctx, args, ad, hopper, dyb, keep, beside);
    if (beside) return input_gradient(ctx, args, ad, hopper, dyb, keep, partials);
  }
  if (!args.dx.empty()) input_gradient(ctx, args, ad, hopper, dyb, keep, {});
}

// What a magnitude adds: dots [chunks, out] = sum over the chunk's rows of dy z, and dy' = (magnitude / norm) dy in z's
// place.
template <class T>
__global__ void __launch_bounds__(128) magnitude_kernel(int64_t rows, int64_t out, const float* magnitude,
                                                        const float* norm, const T* dy, T* z, float* dots) {
  const int64_t col = int64_t{blockIdx.x} * 128 + threadIdx.x;
  if (col >= out) return;
  const float length = norm[col], ratio = length > 0 ? magnitude[col] / length : 0.0F;
  const int64_t begin = int64_t{blockIdx.y} * row_chunk, end = min(rows, begin + row_chunk);
  float dot = 0;
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    const float g = to_float(dy[row * out + col]);
    dot = fmaf(g, to_float(z[row * out + col]), dot);
    z[row * out + col] = from_float<T>(ratio * g);
  }
  dots[int64_t{blockIdx.y} * out + col] = dot;
}

__global__ void __launch_bounds__(threads)
    add_magnitude_kernel(int64_t chunks, int64_t out, const float* norm, const float* dots, float* dmagnitude) {
  const int64_t col = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (col >= out) return;
  const float length = norm[col];
  float sum = dmagnitude[col];
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += length > 0 ? dots[chunk * out + col] / length : 0.0F;
  dmagnitude[col] = sum;
}

void magnitude_backward(Context& ctx, const LinearBackward& args) {
  const int64_t N = args.dy.shape[0], out = args.weight.rows, chunks = ceil_div(N, row_chunk);
  ArenaScope scope(ctx.arena);
  const Tensor z = scope.tensor(args.dy.dtype, {N, out});
  {
    ArenaScope inner(ctx.arena);
    auto* const dots = inner.array<float>(chunks * out);
    cuda::linear_forward(ctx, {.weight = args.weight,
                               .lora_a = args.lora_a,
                               .lora_b = args.lora_b,
                               .scale = args.scale,
                               .dropout = args.dropout,
                               .x = args.x,
                               .y = z});
    if (!ctx.counting()) {
      const dim3 grid(static_cast<unsigned>(ceil_div(out, 128)), static_cast<unsigned>(chunks));
      with_type(args.dy.dtype, [&]<class T>() {
        magnitude_kernel<T><<<grid, 128, 0, stream_of(ctx)>>>(N, out, args.magnitude.as<float>(), args.norm.as<float>(),
                                                              static_cast<const T*>(args.dy.data),
                                                              static_cast<T*>(z.data), dots);
      });
      check_launch("linear_backward");
      add_magnitude_kernel<<<blocks_for(out), threads, 0, stream_of(ctx)>>>(chunks, out, args.norm.as<float>(), dots,
                                                                            args.dmagnitude.as<float>());
      check_launch("linear_backward");
    }
  }
  LinearBackward rest = args;
  rest.dy = z;
  rest.magnitude = rest.norm = rest.dmagnitude = {};
  plain_backward(ctx, rest);
}

}  // namespace

void linear_backward(Context& ctx, const LinearBackward& args) {
  if (!args.magnitude.empty()) magnitude_backward(ctx, args);
  else plain_backward(ctx, args);
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(linear_forward, LinearForward)
SLUICE_CUDA_ENTRY(linear_backward, LinearBackward)
