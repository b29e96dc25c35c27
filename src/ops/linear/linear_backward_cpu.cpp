#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "core/rng.h"
#include "ops/gemm/gemm.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_work.h"
#include "ops/quant/quant.h"
#include "ops/common/cpu_simd.h"

#include "ops/linear/linear_adapter.h"

// First the adapter: thin products by rows, then dA and dB as sums of one product a row chunk, added in order. Then dx: panels over
// input columns, so that no sum is split; an item is one column block for one row chunk.
namespace sluice::SLUICE_CPU {

namespace {

// dA += dyb^T xd and dB^T += xa^T dy: each row chunk's product goes to a partial of its own, in parallel; then the partials
// are added in the order of the chunks.
template <class T>
struct AdapterGradient {
  const LinearBackward& args;
  const Adapter<T>& ad;
  Cut rows;        // row chunks
  int64_t group;   // chunks at a time
  Cut in, out;     // columns of a partial's pieces
  float *da, *db;  // [group, R, in], [group, R, out]

  AdapterGradient(Context& ctx, const LinearBackward& args_, const Adapter<T>& ad_, int64_t N)
      : args(args_), ad(ad_), rows{N, row_chunk} {
    const int threads = ctx.pool.num_threads();
    const int64_t one = ad.R * (ad.in + ad.out) * 4;
    group = std::clamp<int64_t>(partial_bytes / one, 1, std::min<int64_t>(rows.count(), 2 * threads));
    const int64_t pieces = std::max<int64_t>(1, threads / group);  // few chunks: cut their columns, which costs a copy
    in = {ad.in, round_up(ceil_div(ad.in, pieces), 32)};
    out = {ad.out, round_up(ceil_div(ad.out, pieces), 32)};
    da = ctx.arena.array<float>(group * ad.R * ad.in);
    db = ctx.arena.array<float>(group * ad.R * ad.out);
  }

  // [R, n] columns of a partial = left^T right, left [m, R], right [m, cols]
  Gemm gemm(int64_t m, int64_t n, int64_t cols) const {
    return {.m = ad.R,
            .n = n,
            .k = m,
            .dtype = dtype_of<T>::value,
            .lda = ad.ld,
            .transpose_a = true,
            .ldb = cols,
            .ldc = cols};
  }
  int64_t scratch(const Context& ctx) const {
    int64_t bytes = 0;
    for (int64_t m : rows.sizes()) {
      for (int64_t n : in.sizes()) bytes = scratch_bytes(ctx, bytes, gemm(m, n, ad.in));
      for (int64_t n : out.sizes()) bytes = scratch_bytes(ctx, bytes, gemm(m, n, ad.out));
    }
    return bytes + (ad.keep != nullptr ? masked_bytes() : 0);
  }
  int64_t masked_bytes() const { return round_up(rows.size(0) * ad.in * size_of(dtype_of<T>::value), 256); }

  void run(Context& ctx, const T* xa, const T* dyb, const ThreadScratch& scratch) const {
    for (int64_t begin = 0; begin < rows.count(); begin += group) {
      const int64_t count = std::min(group, rows.count() - begin), pieces = in.count() + out.count();
      ctx.pool.parallel_for(count * pieces, [&](int64_t item, int worker) {
        const int64_t slot = item / pieces, piece = item % pieces;
        if (piece < in.count()) partial_a(ctx, begin + slot, slot, piece, dyb, scratch.of(worker));
        else partial_b(ctx, begin + slot, slot, piece - in.count(), xa, scratch.of(worker));
      });
      add_partials(ctx, count);
    }
  }

 private:
  void partial_a(Context& ctx, int64_t chunk, int64_t slot, int64_t piece, const T* dyb, std::byte* at) const {
    const int64_t first = rows.begin(chunk), m = rows.size(chunk), col = in.begin(piece);
    const T* x = args.x.as<T>() + first * ad.in;
    if (ad.keep != nullptr) {
      auto* masked = reinterpret_cast<T*>(at);
      for (int64_t i = 0; i < m; ++i) {
        const int64_t row = i * ad.in + col;
        select(in.size(piece), x + row, ad.keep + first * ad.in + row, masked + row);
      }
      x = masked;
      at += masked_bytes();
    }
    Gemm g = gemm(m, in.size(piece), ad.in);
    g.a = dyb + first * ad.ld;
    g.b = x + col;
    g.c = da + slot * ad.R * ad.in + col;
    gemm_on_this_thread(ctx, g, at);
  }

  void partial_b(Context& ctx, int64_t chunk, int64_t slot, int64_t piece, const T* xa, std::byte* at) const {
    const int64_t first = rows.begin(chunk), col = out.begin(piece);
    Gemm g = gemm(rows.size(chunk), out.size(piece), ad.out);
    g.a = xa + first * ad.ld;
    g.b = args.dy.as<T>() + first * ad.out + col;
    g.c = db + slot * ad.R * ad.out + col;
    gemm_on_this_thread(ctx, g, at);
  }

  void add_partials(Context& ctx, int64_t count) const {
    const int64_t R = ad.R;
    const Cut a_cut{R * ad.in, 8192}, b_cut{ad.out, 256};
    ctx.pool.parallel_for(a_cut.count() + b_cut.count(), [&](int64_t item, int) {
      if (item < a_cut.count()) {
        float* sum = args.dlora_a.as<float>() + a_cut.begin(item);
        for (int64_t slot = 0; slot < count; ++slot) {
          const float* part = da + slot * R * ad.in + a_cut.begin(item);
          for (int64_t i = 0; i < a_cut.size(item); ++i) sum[i] += part[i];
        }
        return;
      }
      const int64_t first = b_cut.begin(item - a_cut.count()), size = b_cut.size(item - a_cut.count());
      for (int64_t slot = 0; slot < count; ++slot) {
        const float* part = db + slot * R * ad.out;
        for (int64_t o = first; o < first + size; ++o) {
          float* sum = args.dlora_b.as<float>() + o * R;
          for (int64_t r = 0; r < R; ++r) sum[r] += part[r * ad.out + o];
        }
      }
    });
  }
};

// dx[:, block] of one row chunk (+)= c, rounded once.
template <class D>
void finish_rows(const LinearBackward& args, int64_t first, int64_t m, int64_t col, int64_t n, const float* c) {
  const int64_t in = args.weight.cols;
  const bool add = args.write == Write::add;
  for (int64_t i = 0; i < m; ++i, c += n) {
    D* dx = args.dx.as<D>() + (first + i) * in + col;
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) store(dx + j, add ? load(dx + j) + load(c + j) : load(c + j));
    if (j < n)
      store_part(dx + j, add ? load_part(dx + j, n - j) + load_part(c + j, n - j) : load_part(c + j, n - j), n - j);
  }
}

// dx = dy W + mask(dyb A), by panels of column blocks.
template <class T>
struct InputGradient {
  static constexpr DType dtype = dtype_of<T>::value;
  const LinearBackward& args;
  const Adapter<T>& ad;
  Cut rows, blocks;  // row chunks, column blocks
  Cut panels;        // of blocks
  bool direct;       // the whole weight is one block and lies as an operand
  T* panel;          // the panel's blocks one after another, each [out, width]
  T* lora_a;         // the same of A: [R, width] each
  int64_t c_bytes;

  InputGradient(Context& ctx, const LinearBackward& args_, const Adapter<T>& ad_, int64_t N)
      : args(args_), ad(ad_), rows{N, row_chunk} {
    const Weight& w = args.weight;
    const int64_t unit = std::max<int64_t>(32, block_cols(w.format));
    blocks = cut_columns(w.cols, rows.count(), ctx.pool.num_threads(), unit);
    direct = blocks.count() == 1 && used_directly(w, dtype);
    const int64_t block_bytes = w.rows * blocks.width * size_of(dtype);
    panels = {blocks.count(), std::clamp<int64_t>(panel_bytes / block_bytes, 1, blocks.count())};
    panel = ctx.arena.array<T>(direct ? 0 : w.rows * blocks.width * panels.width);
    lora_a = ctx.arena.array<T>(ad.R * w.cols);
    c_bytes = round_up(rows.size(0) * blocks.size(0) * 4, 256);
  }

  Gemm main_gemm(int64_t m, int64_t n) const {
    return {.m = m, .n = n, .k = ad.out, .dtype = dtype, .lda = ad.out, .ldb = n, .ldc = n};
  }
  Gemm low_gemm(int64_t m, int64_t n) const {
    return {.m = m,
            .n = n,
            .k = ad.R,
            .dtype = dtype,
            .lda = ad.ld,
            .ldb = n,
            .ldc = n,
            .write = ad.keep != nullptr ? Write::set : Write::add};
  }
  int64_t scratch(const Context& ctx) const {
    int64_t bytes = 0;
    for (int64_t n : blocks.sizes()) {
      for (int64_t m : rows.sizes()) {
        bytes = scratch_bytes(ctx, bytes, main_gemm(m, n));
        if (ad.R > 0) bytes = scratch_bytes(ctx, bytes, low_gemm(m, n));
      }
    }
    return bytes + c_bytes * (ad.keep != nullptr ? 2 : 1);
  }

  void load_panel(Context& ctx, int64_t p) const {
    if (direct) return;
    for (int64_t b = panels.begin(p); b < panels.begin(p) + panels.size(p); ++b) {
      sluice::dequantize(ctx, {.weight = args.weight,
                               .col_begin = blocks.begin(b),
                               .out = {block_of(p, b), dtype, {ad.out, blocks.size(b)}}});
    }
  }
  T* block_of(int64_t p, int64_t b) const { return panel + ad.out * (blocks.begin(b) - blocks.begin(panels.begin(p))); }

  void run(Context& ctx, const T* dyb, const ThreadScratch& scratch) const {
    ctx.pool.parallel_for(ad.R > 0 ? blocks.count() : 0, [&](int64_t b, int) {
      const int64_t n = blocks.size(b), col = blocks.begin(b);
      for (int64_t r = 0; r < ad.R; ++r)
        convert(n, args.lora_a.as<float>() + r * ad.in + col, lora_a + ad.R * col + r * n);
    });
    for (int64_t p = 0; p < panels.count(); ++p) {
      load_panel(ctx, p);
      ctx.pool.parallel_for(panels.size(p) * rows.count(), [&](int64_t item, int worker) {
        const int64_t b = panels.begin(p) + item / rows.count();
        run_block(ctx, b, direct ? reinterpret_cast<const T*>(args.weight.data) : block_of(p, b), item % rows.count(),
                  dyb, scratch.of(worker));
      });
    }
  }

 private:
  void run_block(Context& ctx, int64_t b, const T* weights, int64_t chunk, const T* dyb, std::byte* at) const {
    const int64_t first = rows.begin(chunk), m = rows.size(chunk), col = blocks.begin(b), n = blocks.size(b);
    auto* c = reinterpret_cast<float*>(at);
    at += c_bytes;
    Gemm g = main_gemm(m, n);
    g.a = args.dy.as<T>() + first * ad.out;
    g.b = weights;
    g.c = c;
    auto* low = ad.keep != nullptr ? reinterpret_cast<float*>(at) : c;
    if (ad.keep != nullptr) at += c_bytes;
    gemm_on_this_thread(ctx, g, at);
    if (ad.R > 0) {
      g = low_gemm(m, n);
      g.a = dyb + first * ad.ld;
      g.b = lora_a + ad.R * col;
      g.c = low;
      gemm_on_this_thread(ctx, g, at);
    }
    for (int64_t i = 0; ad.keep != nullptr && i < m; ++i) {
      const uint8_t* keep = ad.keep + (first + i) * ad.in + col;
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += keep[j] != 0 ? low[i * n + j] : 0.0F;
    }
    if (args.dx.dtype == DType::bf16) finish_rows<bf16>(args, first, m, col, n, c);
    else finish_rows<float>(args, first, m, col, n, c);
  }
};

// What a magnitude adds: dmagnitude, from z = x W^T + scale * xa B^T formed again, and dy' = (magnitude / norm) * dy.
template <class T>
struct MagnitudeGradient {
  const LinearBackward& args;
  Cut rows, columns;
  T* scaled;  // dy' [N, out]

  MagnitudeGradient(Context& ctx, const LinearBackward& args_)
      : args(args_),
        rows{args.dy.shape[0], row_chunk},
        columns{args.weight.rows, 128},
        scaled(ctx.arena.array<T>(rows.total * columns.total)) {}

  void run(Context& ctx) const {
    ArenaScope scope(ctx.arena);
    const int64_t N = rows.total, out = columns.total;
    Tensor z = scope.tensor(dtype_of<T>::value, {N, out});
    SLUICE_CPU::linear_forward(ctx, {.weight = args.weight,
                                     .lora_a = args.lora_a,
                                     .lora_b = args.lora_b,
                                     .scale = args.scale,
                                     .dropout = args.dropout,
                                     .x = args.x,
                                     .y = z});
    if (ctx.counting()) return;
    ctx.pool.parallel_for(columns.count(), [&](int64_t item, int) {
      const int64_t first = columns.begin(item);
      for (int64_t chunk = 0; chunk < rows.count(); ++chunk)
        run_block(rows.begin(chunk), rows.size(chunk), first, columns.size(item), z.as<T>());
    });
  }

 private:
  void run_block(int64_t row, int64_t m, int64_t first, int64_t n, const T* z) const {
    const float *magnitude = args.magnitude.as<float>() + first, *norm = args.norm.as<float>() + first;
    float* sum = args.dmagnitude.as<float>() + first;
    for (int64_t j = 0; j < n; j += lanes) {
      const int64_t count = std::min<int64_t>(lanes, n - j);
      const F32 length = load_part(norm + j, count),
                ratio = length > 0.0F ? load_part(magnitude + j, count) / length : F32{};
      const bool whole = count == lanes;
      F32 dot{};
      for (int64_t i = row; i < row + m; ++i) {
        const int64_t at = i * columns.total + first + j;
        const T* from = args.dy.as<T>() + at;
        const F32 dy = whole ? load(from) : load_part(from, count);
        dot += dy * (whole ? load(z + at) : load_part(z + at, count));
        if (whole) store(scaled + at, ratio * dy);
        else store_part(scaled + at, ratio * dy, count);
      }
      store_part(sum + j, load_part(sum + j, count) + (length > 0.0F ? dot / length : F32{}), count);
    }
  }
};

template <class T>
void backward(Context& ctx, const LinearBackward& args);

template <class T>
void magnitude_backward(Context& ctx, const LinearBackward& args) {
  ArenaScope scope(ctx.arena);
  const MagnitudeGradient<T> gradient(ctx, args);
  gradient.run(ctx);
  LinearBackward rest = args;
  rest.dy.data = gradient.scaled;
  rest.magnitude = rest.norm = rest.dmagnitude = {};
  backward<T>(ctx, rest);
}

template <class T>
void backward(Context& ctx, const LinearBackward& args) {
  if (!args.magnitude.empty()) return magnitude_backward<T>(ctx, args);
  const int64_t N = args.dy.shape[0], in = args.weight.cols, out = args.weight.rows;
  ArenaScope scope(ctx.arena);
  const Adapter<T> ad(ctx.arena, args, N);
  const int64_t R = ad.R;
  const bool forms_xa = args.xa.empty();
  T *xa = forms_xa ? scope.array<T>(N * ad.ld) : args.xa.as<T>(), *dyb = scope.array<T>(N * ad.ld);
  if (R > 0) {
    ArenaScope sums(ctx.arena);
    const ThinProduct<T> low_x(ctx, N, in, R, true, ad.factor), low_dy(ctx, N, out, R, false, ad.factor);
    const AdapterGradient<T> gradient(ctx, args, ad, N);
    const ThreadScratch scratch(
        ctx, std::max({low_x.scratch(ctx, ad.keep != nullptr), low_dy.scratch(ctx, false), gradient.scratch(ctx)}));
    if (!ctx.counting()) {
      prepare(ctx, args, N, ad);
      const int64_t items = low_x.rows().count();
      ctx.pool.parallel_for(forms_xa ? 2 * items : items, [&](int64_t item, int worker) {
        if (item < items) low_dy.run_item(ctx, item, args.dy.as<T>(), nullptr, ad.b, dyb, scratch.of(worker));
        else low_x.run_item(ctx, item - items, args.x.as<T>(), ad.keep, ad.a, xa, scratch.of(worker));
      });
      gradient.run(ctx, xa, dyb, scratch);
    }
  }
  if (args.dx.empty()) return;
  const InputGradient<T> gradient(ctx, args, ad, N);
  const ThreadScratch scratch(ctx, gradient.scratch(ctx));
  if (ctx.counting()) return gradient.load_panel(ctx, 0);
  gradient.run(ctx, dyb, scratch);
}

}  // namespace

void linear_backward(Context& ctx, const LinearBackward& args) {
  if (args.dy.dtype == DType::bf16) backward<bf16>(ctx, args);
  else backward<float>(ctx, args);
}

}  // namespace sluice::SLUICE_CPU
