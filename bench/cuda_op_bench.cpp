// Times every op on a CUDA device at the shapes of real models, through the ops' public functions.
//
//   cuda_op_bench                                   all rows, one table
//   cuda_op_bench --filter "attention,D 512"        rows whose name has one of these
//   cuda_op_bench --tokens 2048 --json rows.json
//
// Random bf16 data, made on the device. A time is the median of --repeats timings by CUDA events after --warmups runs; a timing of an
// op that takes less than a millisecond is the mean of several runs. TFLOP/s count useful work: attention 4 D (forward) and
// 10 D (backward) a visible pair and head; linear layers the base's products only, so that an adapter's cost is seen in ms;
// the head 4 M C V. GB/s count what must be read and written once. Scratch is what the op took of the arena.
// bench/peers/cuda_ops_peer.py prints the same rows for PyTorch.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/json.h"
#include "core/rng.h"
#include "ops/activation/activation.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/common/copy.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/quant/quant.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"
#include "timing.h"

namespace sluice {
namespace {

struct Options {
  std::string filter, json;
  int64_t tokens = 8192, rank = 16, head_rows = 2048, data_gib = 12, scratch_gib = 12;
  int repeats = 10, warmups = 3, device = 0;
};

// What a row's call does once.
struct Work {
  double flop = 0, bytes = 0;
};

class Bench {
 public:
  explicit Bench(const Options& o)
      : options_(o),
        device_(Device::cuda(o.device)),
        data_(Arena::allocate(device_, o.data_gib << 30)),
        scratch_(Arena::allocate(device_, o.scratch_gib << 30)),
        pool_(1),
        timer_(device_),
        ctx{.arena = scratch_, .pool = pool_, .device = device_} {
    std::stringstream words(o.filter);
    for (std::string word; std::getline(words, word, ',');) wanted_.push_back(word);
    fmt::print("{:<66} {:>10} {:>9} {:>9} {:>12}\n", "op", "ms", "TFLOP/s", "GB/s", "scratch MiB");
  }

  // Data that lives until the group ends.
  Tensor tensor(DType dtype, Shape shape, float scale = 1) {
    Tensor t = data_.tensor(dtype, shape);
    device_random(device_, t.data, dtype, t.numel(), ++seed_, scale);
    return t;
  }
  Tensor zeros(DType dtype, Shape shape) {
    Tensor t = data_.tensor(dtype, shape);
    zero(ctx, {.tensor = t});
    return t;
  }
  Tensor integers(const std::vector<int32_t>& values) {
    Tensor t = data_.tensor(DType::i32, {static_cast<int64_t>(values.size())});
    copy_from_host(ctx, {.host = values.data(), .tensor = t});
    return t;
  }
  Weight weight(WeightFormat format, int64_t rows, int64_t cols);

  bool wants(const std::string& name) const {
    if (wanted_.empty()) return true;
    for (const std::string& word : wanted_) {
      if (name.find(word) != std::string::npos) return true;
    }
    return false;
  }

  // A group of rows over the same data. Nothing is made when no name of the group is asked for.
  void group(const std::vector<std::string>& names, const std::function<void()>& body) {
    bool any = false;
    for (const std::string& name : names) any = any || wants(name);
    if (!any) return;
    ArenaScope scope(data_);
    try {
      body();
    } catch (const Error& e) {
      failed(names.front(), e);
    }
  }

  void row(const std::string& name, Work work, const std::function<void()>& call) {
    if (!wants(name)) return;
    try {
      measure(name, work, call);
    } catch (const Error& e) {
      failed(name, e);
    }
  }

  const Options& options() const { return options_; }
  const Json& rows() const { return rows_; }

 private:
  void measure(const std::string& name, Work work, const std::function<void()>& call) {
    scratch_.reset_peak();
    for (int i = 0; i < options_.warmups; ++i) call();
    synchronize(device_);
    timer_.start();
    call();
    const double once = timer_.stop();
    const int runs = once >= 1 ? 1 : static_cast<int>(std::min(50.0, std::ceil(1 / std::max(once, 1e-3))));
    std::vector<double> ms;
    for (int i = 0; i < options_.repeats; ++i) {
      timer_.start();
      for (int run = 0; run < runs; ++run) call();
      ms.push_back(timer_.stop() / runs);
    }
    const double median = bench::median(ms), tflops = work.flop / median / 1e9, gbs = work.bytes / median / 1e6;
    const double scratch = static_cast<double>(scratch_.peak()) / (1 << 20);
    const auto number = [](double value) { return value > 0 ? fmt::format("{:.1f}", value) : std::string("-"); };
    fmt::print("{:<66} {:>10.4f} {:>9} {:>9} {:>12.1f}\n", name, median, number(tflops), number(gbs), scratch);
    std::fflush(stdout);
    rows_.push_back({{"op", name}, {"ms", median}, {"tflops", tflops}, {"gbs", gbs}, {"scratch_mib", scratch}});
  }

  void failed(const std::string& name, const Error& e) {
    fmt::print("{:<66} failed: {}\n", name, e.what());
    std::fflush(stdout);
    rows_.push_back({{"op", name}, {"error", e.what()}});
    synchronize(device_);  // a device that is lost ends the program here
  }

  Options options_;
  Device device_;
  Arena data_, scratch_;
  ThreadPool pool_;
  DeviceTimer timer_;
  std::vector<std::string> wanted_;
  uint64_t seed_ = 0;
  Json rows_ = Json::array();

 public:
  Context ctx;
};

// Random codes, with scales that keep the weights of ordinary size.
Weight Bench::weight(WeightFormat format, int64_t rows, int64_t cols) {
  Weight w{.format = format, .rows = rows, .cols = cols};
  if (format == WeightFormat::bf16) {
    w.data = static_cast<const std::byte*>(tensor(DType::bf16, {rows, cols}, 0.02F).data);
    return w;
  }
  if (format == WeightFormat::affine) w.bits = 4, w.group_size = 64;
  std::vector<uint64_t> words(static_cast<size_t>((rows * w.row_bytes() + 7) / 8));
  std::mt19937_64 engine(++seed_);
  for (uint64_t& word : words) word = engine();
  auto* bytes = reinterpret_cast<std::byte*>(words.data());
  if (format == WeightFormat::affine) {
    const Shape groups{rows, cols / w.group_size};
    w.scales = static_cast<const std::byte*>(tensor(DType::bf16, groups, 0.004F).data);
    w.biases = static_cast<const std::byte*>(tensor(DType::bf16, groups, 0.02F).data);
  } else {
    const uint16_t scale = 0x1000;  // 2^-11
    const int64_t block = block_bytes(format), scales = format == WeightFormat::q4_k ? 2 : 1;
    const int64_t first = format == WeightFormat::q6_k ? 208 : 0;
    for (int64_t at = first; at < rows * w.row_bytes(); at += block) {
      for (int64_t i = 0; i < scales; ++i) std::memcpy(bytes + at + 2 * i, &scale, 2);
    }
  }
  Tensor stored = data_.tensor(DType::u8, {rows * w.row_bytes()});
  copy_from_host(ctx, {.host = bytes, .tensor = stored});
  synchronize(device_);
  w.data = static_cast<const std::byte*>(stored.data);
  return w;
}

const char* name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::affine: return "affine4";
    case WeightFormat::q4_k: return "q4_k";
    case WeightFormat::q6_k: return "q6_k";
    default: return "q8_0";
  }
}

void attention_rows(Bench& b) {
  struct Case {
    int64_t heads, kv_heads, head_dim, window, tokens;
  };
  for (const Case& c : {Case{32, 8, 128, 0, 32768}, Case{32, 4, 512, 0, 8192}, Case{32, 4, 512, 0, 32768},
                        Case{32, 16, 256, 1024, 8192}, Case{32, 16, 256, 1024, 32768}, Case{8, 2, 256, 512, 32768},
                        Case{16, 2, 128, 0, 8192}, Case{32, 8, 128, 1024, 32768}, Case{32, 8, 64, 0, 16384},
                        Case{32, 8, 64, 1024, 16384}, Case{16, 4, 256, 0, 16384}, Case{32, 8, 96, 0, 8192}}) {
    const std::string about =
        fmt::format("{} {}/{} D {} N {}", c.window > 0 ? fmt::format("window {}", c.window) : "causal", c.heads,
                    c.kv_heads, c.head_dim, c.tokens);
    const std::string forward = "attention forward, " + about, backward = "attention backward, " + about;
    b.group({forward, backward}, [&] {
      const int64_t N = c.tokens, wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
      const Spans spans = Spans::one(N);
      const AttentionShape shape{.num_heads = c.heads,
                                 .num_kv_heads = c.kv_heads,
                                 .head_dim = c.head_dim,
                                 .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                 .window = c.window};
      const Tensor q = b.tensor(DType::bf16, {N, wide}), k = b.tensor(DType::bf16, {N, narrow}),
                   v = b.tensor(DType::bf16, {N, narrow}), o = b.zeros(DType::bf16, {N, wide}),
                   lse = b.zeros(DType::f32, {N, c.heads});
      const double flop = static_cast<double>(spans.visible_pairs(c.window)) * static_cast<double>(wide);
      const auto run_forward = [&] {
        attention_forward(b.ctx, {.shape = shape, .spans = spans, .q = q, .k = k, .v = v, .o = o, .lse = lse});
      };
      b.row(forward, {.flop = 4 * flop}, run_forward);
      if (!b.wants(backward)) return;
      run_forward();  // its o and lse are read
      const Tensor do_ = b.tensor(DType::bf16, {N, wide}), dq = b.zeros(DType::f32, {N, wide}),
                   dk = b.zeros(DType::f32, {N, narrow}), dv = b.zeros(DType::f32, {N, narrow});
      b.row(backward, {.flop = 10 * flop}, [&] {
        attention_backward(b.ctx, {.shape = shape,
                                   .spans = spans,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .o = o,
                                   .lse = lse,
                                   .do_ = do_,
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv});
      });
    });
  }
}

// Forward, and the backward of dx alone and of dx, dA and dB, with what the forward keeps and without.
void linear_case(Bench& b, WeightFormat format, int64_t in, int64_t out) {
  const int64_t N = b.options().tokens, R = b.options().rank;
  const std::string about = fmt::format("{} {} -> {}, {} rows", name_of(format), in, out, N);
  const std::string names[] = {"linear forward, base alone, " + about, "linear forward, adapted, " + about,
                               "linear backward, base alone, " + about, "linear backward, adapted, " + about,
                               "linear backward, adapted, x A^T formed again, " + about};
  b.group({std::begin(names), std::end(names)}, [&] {
    const Weight w = b.weight(format, out, in);
    const Tensor x = b.tensor(DType::bf16, {N, in}), y = b.zeros(DType::bf16, {N, out}),
                 dy = b.tensor(DType::bf16, {N, out}), dx = b.zeros(DType::bf16, {N, in});
    const Tensor la = b.tensor(DType::f32, {R, in}, 0.02F), lb = b.tensor(DType::f32, {out, R}, 0.02F),
                 da = b.zeros(DType::f32, {R, in}), db = b.zeros(DType::f32, {out, R}),
                 xa = b.zeros(DType::bf16, {N, xa_columns(R)});
    const Work work{.flop = 2 * static_cast<double>(N) * static_cast<double>(in * out)};
    b.row(names[0], work, [&] { linear_forward(b.ctx, {.weight = w, .x = x, .y = y}); });
    const auto forward = [&] {
      linear_forward(b.ctx, {.weight = w, .lora_a = la, .lora_b = lb, .scale = 2, .x = x, .y = y, .xa = xa});
    };
    const auto backward = [&](const Tensor& kept) {
      linear_backward(b.ctx, {.weight = w,
                              .lora_a = la,
                              .lora_b = lb,
                              .scale = 2,
                              .x = x,
                              .xa = kept,
                              .dy = dy,
                              .dx = dx,
                              .dlora_a = da,
                              .dlora_b = db});
    };
    b.row(names[1], work, forward);
    b.row(names[2], work, [&] { linear_backward(b.ctx, {.weight = w, .dy = dy, .dx = dx}); });
    b.row(names[3], work, [&] { backward(xa); });
    b.row(names[4], work, [&] { backward({}); });
  });
}

void linear_rows(Bench& b) {
  constexpr int64_t shapes[][2] = {{1536, 2048}, {1536, 4608}, {4608, 1536}, {4096, 14336}, {5376, 21504}};
  for (const auto& [in, out] : shapes) linear_case(b, WeightFormat::bf16, in, out);
  for (WeightFormat format : {WeightFormat::q4_k, WeightFormat::affine}) {
    linear_case(b, format, 1536, 4608);
    linear_case(b, format, 4096, 14336);
    linear_case(b, format, 5376, 21504);
  }
}

void head_rows(Bench& b) {
  struct Case {
    int64_t width, vocabulary;
    float softcap;
    WeightFormat format;
  };
  for (const Case& c : {Case{1536, 130560, 0, WeightFormat::bf16}, Case{2560, 262144, 30, WeightFormat::bf16},
                        Case{4096, 128256, 0, WeightFormat::bf16}, Case{2560, 262144, 30, WeightFormat::affine}}) {
    for (int64_t M : {int64_t{8192}, int64_t{2048}}) {
      const std::string about = fmt::format("{} {} x {}{}, {} rows", name_of(c.format), c.width, c.vocabulary,
                                            c.softcap > 0 ? " softcap" : "", M);
      const std::string by_rows = "head by rows, " + about, evaluation = "head by rows, logp alone, " + about,
                        blocks = "head by blocks, both passes, " + about;
      b.group({by_rows, evaluation, blocks}, [&] {
        const Weight w = b.weight(c.format, c.vocabulary, c.width);
        // Logits of standard deviation 8: peaked rows, as after training.
        const float spread = 8 / (0.02F * std::sqrt(static_cast<float>(c.width)));
        const Tensor h = b.tensor(DType::bf16, {M, c.width}, spread), dh = b.zeros(DType::bf16, {M, c.width});
        const Tensor logp = b.zeros(DType::f32, {M}), lse = b.zeros(DType::f32, {M}), g = b.tensor(DType::f32, {M});
        std::vector<int32_t> ids(static_cast<size_t>(M));
        for (size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<int32_t>(random_bits(1, 3, i) % static_cast<uint32_t>(c.vocabulary));
        const Tensor targets = b.integers(ids);
        const double product = 2 * static_cast<double>(M) * static_cast<double>(c.width * c.vocabulary);
        const auto rows_of = [&](const Tensor& out) {
          linear_cross_entropy_by_rows(b.ctx, {.weight = w,
                                               .h = h,
                                               .targets = targets,
                                               .softcap = c.softcap,
                                               .rows_per_chunk = b.options().head_rows,
                                               .logp = logp,
                                               .lse = lse,
                                               .dh = out});
        };
        b.row(by_rows, {.flop = 2 * product}, [&] { rows_of(dh); });
        b.row(evaluation, {.flop = product}, [&] { rows_of({}); });
        b.row(blocks, {.flop = 2 * product}, [&] {
          linear_cross_entropy_by_blocks(
              b.ctx, {.weight = w, .h = h, .targets = targets, .softcap = c.softcap, .logp = logp, .lse = lse});
          linear_cross_entropy_by_blocks_backward(
              b.ctx, {.weight = w, .h = h, .targets = targets, .softcap = c.softcap, .lse = lse, .g = g, .dh = dh});
        });
      });
    }
  }
  for (WeightFormat format : {WeightFormat::bf16, WeightFormat::affine}) {
    const std::string name = fmt::format("head logits, {} 2560 x 262144, 1 row", name_of(format));
    b.group({name}, [&] {
      const Weight w = b.weight(format, 262144, 2560);
      const Tensor h = b.tensor(DType::bf16, {1, 2560}), logits = b.zeros(DType::f32, {1, 262144});
      b.row(name, {.bytes = static_cast<double>(w.size_bytes())},
            [&] { head_logits(b.ctx, {.weight = w, .h = h, .logits = logits}); });
    });
  }
}

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors) bytes += static_cast<double>(t.size_bytes());
  return bytes;
}

void elementwise_rows(Bench& b) {
  const int64_t N = b.options().tokens, C = 4096, F = 14336, H = 32, D = 128;
  const std::string rows = fmt::format(", {} rows", N);
  const std::string norm = "rmsnorm forward, 4096" + rows, norm_back = "rmsnorm backward, 4096" + rows,
                    norm_add = "rmsnorm forward + residual, 4096" + rows,
                    heads = "rmsnorm forward, 32 groups of 128" + rows,
                    heads_back = "rmsnorm backward, 32 groups of 128" + rows,
                    turned = "rmsnorm + rope forward, 32 groups of 128" + rows,
                    turned_back = "rmsnorm + rope backward, 32 groups of 128" + rows;
  b.group({norm, norm_back, norm_add, heads, heads_back, turned, turned_back}, [&] {
    const Tensor x = b.tensor(DType::bf16, {N, C}), y = b.zeros(DType::bf16, {N, C}),
                 dy = b.tensor(DType::bf16, {N, C}), dx = b.zeros(DType::bf16, {N, C}),
                 weight = b.tensor(DType::f32, {C}), narrow = b.tensor(DType::f32, {D}),
                 table = b.tensor(DType::f32, {N, D}), dy_f32 = b.tensor(DType::f32, {N, C});
    b.row(norm, {.bytes = bytes_of({x, y})}, [&] { rmsnorm_forward(b.ctx, {.x = x, .weight = weight, .y = y}); });
    b.row(norm_add, {.bytes = bytes_of({x, dy, y})},
          [&] { rmsnorm_forward(b.ctx, {.x = x, .weight = weight, .residual = dy, .y = y}); });
    b.row(norm_back, {.bytes = bytes_of({x, dy, dx})},
          [&] { rmsnorm_backward(b.ctx, {.x = x, .weight = weight, .dy = dy, .dx = dx}); });
    b.row(heads, {.bytes = bytes_of({x, y})},
          [&] { rmsnorm_forward(b.ctx, {.x = x, .weight = narrow, .y = y, .groups = H}); });
    b.row(heads_back, {.bytes = bytes_of({x, dy, dx})},
          [&] { rmsnorm_backward(b.ctx, {.x = x, .weight = narrow, .dy = dy, .dx = dx, .groups = H}); });
    b.row(turned, {.bytes = bytes_of({x, table, y})},
          [&] { rmsnorm_forward(b.ctx, {.x = x, .weight = narrow, .table = table, .y = y, .groups = H}); });
    b.row(turned_back, {.bytes = bytes_of({x, table, dy_f32, dx})}, [&] {
      rmsnorm_backward(b.ctx, {.x = x, .weight = narrow, .table = table, .dy = dy_f32, .dx = dx, .groups = H});
    });
  });
  const std::string rotate = "rope, 32 x 128" + rows, table_name = "rope table, 128" + rows;
  b.group({rotate, table_name}, [&] {
    const Tensor x = b.tensor(DType::bf16, {N, H * D}), y = b.zeros(DType::bf16, {N, H * D}),
                 table = b.zeros(DType::f32, {N, D});
    std::vector<int32_t> host(static_cast<size_t>(N));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int32_t>(i);
    const Tensor positions = b.integers(host);
    const std::vector<double> frequencies(static_cast<size_t>(D / 2), 0.01);
    b.row(table_name, {.bytes = bytes_of({table})},
          [&] { rope_table(b.ctx, {.frequencies = frequencies.data(), .positions = positions, .table = table}); });
    b.row(rotate, {.bytes = bytes_of({x, table, y})},
          [&] { rope(b.ctx, {.x = x, .table = table, .y = y, .head_dim = D}); });
  });
  const std::string gated = "gated forward, 14336" + rows, gated_back = "gated backward, 14336" + rows;
  b.group({gated, gated_back}, [&] {
    const Tensor g = b.tensor(DType::bf16, {N, F}), u = b.tensor(DType::bf16, {N, F}), y = b.zeros(DType::bf16, {N, F}),
                 dy = b.tensor(DType::bf16, {N, F}), da = b.zeros(DType::bf16, {N, F}),
                 db = b.zeros(DType::bf16, {N, F});
    b.row(gated, {.bytes = bytes_of({g, u, y})}, [&] { gated_forward(b.ctx, {.a = g, .b = u, .y = y}); });
    b.row(gated_back, {.bytes = bytes_of({g, u, dy, da, db})},
          [&] { gated_backward(b.ctx, {.a = g, .b = u, .dy = dy, .da = da, .db = db}); });
  });
  const std::string gather = "gather rows, 4096, a quarter of" + rows,
                    scatter = "scatter rows, 4096, a quarter of" + rows, scale = "scale into, f32 to bf16, 4096" + rows,
                    columns = "gather columns, 256 of 4096" + rows, clear = "zero, 4096" + rows;
  b.group({gather, scatter, scale, columns, clear}, [&] {
    const int64_t M = N / 4;
    std::vector<int32_t> host(static_cast<size_t>(M));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int32_t>(static_cast<int64_t>(i) + N - M);
    const Tensor index = b.integers(host), x = b.tensor(DType::bf16, {N, C}), part = b.zeros(DType::bf16, {M, C}),
                 weight = b.tensor(DType::f32, {M}), whole = b.tensor(DType::f32, {N, C}),
                 some = b.zeros(DType::bf16, {N, 256});
    b.row(gather, {.bytes = 2 * bytes_of({part})}, [&] { gather_rows(b.ctx, {.x = x, .index = index, .y = part}); });
    b.row(scatter, {.bytes = bytes_of({part, x})},
          [&] { scatter_rows(b.ctx, {.x = part, .weight = weight, .index = index, .y = x}); });
    b.row(scale, {.bytes = bytes_of({whole, x})}, [&] { scale_into(b.ctx, {.x = whole, .y = x, .scale = 0.5F}); });
    b.row(columns, {.bytes = 2 * bytes_of({some})}, [&] { gather_columns(b.ctx, {.x = x, .begin = 512, .y = some}); });
    b.row(clear, {.bytes = bytes_of({x})}, [&] { zero(b.ctx, {.tensor = x}); });
  });
  const std::string update = "adamw, 42 M parameters", squares = "sum of squares, 42 M";
  b.group({update, squares}, [&] {
    const int64_t n = 42'000'000;
    const Tensor p = b.tensor(DType::f32, {n}), m = b.zeros(DType::f32, {n}), v = b.zeros(DType::f32, {n}),
                 g = b.tensor(DType::f32, {n});
    b.row(update, {.bytes = 7 * bytes_of({p})},
          [&] { adamw(b.ctx, {.p = p, .m = m, .v = v, .g = g, .lr = 1e-4F, .weight_decay = 0.01F, .t = 3}); });
    double result[2] = {};
    b.row(squares, {.bytes = bytes_of({g})}, [&] { sum_of_squares(b.ctx, {.g = g, .result = result}); });
  });
}

void weight_rows(Bench& b) {
  const int64_t in = 4096, out = 14336;
  for (WeightFormat format :
       {WeightFormat::bf16, WeightFormat::q8_0, WeightFormat::q4_k, WeightFormat::q6_k, WeightFormat::affine}) {
    const std::string about = fmt::format("{} 4096 -> 14336", name_of(format));
    const std::string whole = "dequantize, " + about, gather = "gather weight rows, 8192 of " + about;
    std::vector<std::string> names = {whole, gather};
    const int64_t counts[] = {1, 8, 16};
    for (int64_t n : counts) names.push_back(fmt::format("weight matvec, {} rows, {}", n, about));
    b.group(names, [&] {
      const Weight w = b.weight(format, out, in);
      const Tensor matrix = b.zeros(DType::bf16, {out, in});
      b.row(whole, {.bytes = static_cast<double>(w.size_bytes()) + bytes_of({matrix})},
            [&] { dequantize(b.ctx, {.weight = w, .out = matrix}); });
      std::vector<int32_t> host(8192);
      for (size_t i = 0; i < host.size(); ++i)
        host[i] = static_cast<int32_t>(random_bits(1, 5, i) % static_cast<uint32_t>(out));
      const Tensor ids = b.integers(host), rows = b.zeros(DType::bf16, {8192, in});
      b.row(gather, {.bytes = bytes_of({rows}) + static_cast<double>(8192 * w.row_bytes())},
            [&] { gather_weight_rows(b.ctx, {.table = w, .ids = ids, .y = rows}); });
      for (size_t i = 0; i < std::size(counts); ++i) {
        const Tensor x = b.tensor(DType::bf16, {counts[i], in}), y = b.zeros(DType::bf16, {counts[i], out});
        b.row(names[2 + i], {.bytes = static_cast<double>(w.size_bytes())},
              [&] { weight_matvec(b.ctx, {.weight = w, .x = x, .y = y}); });
      }
    });
  }
}

void decode_rows(Bench& b) {
  struct Case {
    int64_t batch, heads, kv_heads, head_dim, length;
  };
  for (const Case& c :
       {Case{1, 32, 8, 128, 8192}, Case{8, 32, 8, 128, 8192}, Case{1, 32, 8, 128, 65536}, Case{8, 8, 2, 512, 8192}}) {
    const std::string name = fmt::format("attention decode, {} x {}/{} D {}, {} rows each", c.batch, c.heads,
                                         c.kv_heads, c.head_dim, c.length);
    b.group({name}, [&] {
      std::vector<AttentionDecode::Sequence> sequences;
      double bytes = 0;
      for (int64_t i = 0; i < c.batch; ++i) {
        const Shape shape{c.length, c.kv_heads * c.head_dim};
        sequences.push_back({.k = b.tensor(DType::bf16, shape), .v = b.tensor(DType::bf16, shape), .end = c.length});
        bytes += bytes_of({sequences.back().k, sequences.back().v});
      }
      const Tensor q = b.tensor(DType::bf16, {c.batch, c.heads * c.head_dim}),
                   o = b.zeros(DType::bf16, {c.batch, c.heads * c.head_dim});
      const AttentionShape shape{.num_heads = c.heads,
                                 .num_kv_heads = c.kv_heads,
                                 .head_dim = c.head_dim,
                                 .scale = 1 / std::sqrt(static_cast<float>(c.head_dim))};
      b.row(name, {.bytes = bytes},
            [&] { attention_decode(b.ctx, {.shape = shape, .sequences = sequences, .q = q, .o = o}); });
    });
  }
}

void run(const Options& options) {
  const std::vector<DeviceInfo> devices = cuda_devices();
  check(options.device < static_cast<int>(devices.size()), ErrorCode::device,
        fmt::format("the driver shows {} CUDA devices", devices.size()));
  const DeviceInfo& d = devices[static_cast<size_t>(options.device)];
  fmt::print("{}, CUDA {}.{}\n", d.name, d.runtime_version / 1000, d.runtime_version % 1000 / 10);
  Bench b(options);
  for (const auto group : {attention_rows, linear_rows, head_rows, elementwise_rows, weight_rows, decode_rows})
    group(b);
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << Json({{"device", d.name}, {"rows", b.rows()}}).dump(1) << "\n";
  check(file.good(), ErrorCode::bad_file, "cannot write " + options.json);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("Times every op on a CUDA device");
  app.add_option("--filter", options.filter, "parts of names, separated by commas; all rows otherwise");
  app.add_option("--tokens", options.tokens, "rows of linear and elementwise ops")->capture_default_str();
  app.add_option("--rank", options.rank, "of the adapters")->capture_default_str();
  app.add_option("--head-rows", options.head_rows, "rows at once of the head by rows")->capture_default_str();
  app.add_option("--repeats", options.repeats, "timings, of which the median is told")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--warmups", options.warmups)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--data-gib", options.data_gib, "device memory for the rows' data")->capture_default_str();
  app.add_option("--scratch-gib", options.scratch_gib, "device memory for the ops' scratch")->capture_default_str();
  app.add_option("--device", options.device, "index of the CUDA device")->capture_default_str();
  app.add_option("--json", options.json, "file for the rows");
  CLI11_PARSE(app, argc, argv);
  try {
    sluice::run(options);
  } catch (const sluice::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  return 0;
}
