#include "ops/gemm/gemm.h"

#include <omp.h>

#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

namespace sluice {

namespace {

using Dims = dnnl::memory::dims;

// Everything that a primitive depends on; pointers are not part of it.
struct Key {
  int64_t m, n, k, lda, ldb, ldc;
  DType dtype, c_dtype;
  bool transpose_a, transpose_b, add;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0;
    const auto mix = [&h](uint64_t v) { h = (h ^ v) * 0x9E3779B97F4A7C15ULL, h ^= h >> 29; };
    for (int64_t v : {key.m, key.n, key.k, key.lda, key.ldb, key.ldc}) mix(static_cast<uint64_t>(v));
    mix(static_cast<uint64_t>(key.dtype) | static_cast<uint64_t>(key.c_dtype) << 8 | static_cast<uint64_t>(key.transpose_a) << 16 |
        static_cast<uint64_t>(key.transpose_b) << 17 | static_cast<uint64_t>(key.add) << 18);
    return h;
  }
};

struct Entry {
  dnnl::memory::desc a, b, c, scratchpad;
  dnnl::matmul primitive;
  int64_t scratchpad_bytes = 0;
};

// oneDNN creates and runs a primitive with the OpenMP threads of the calling thread: one, while this lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Lives until the process ends: threads may still hold memory objects when statics are destroyed.
dnnl::engine& engine() {
  static auto* const cpu = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *cpu;
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc matrix(int64_t rows, int64_t cols, DType dtype, int64_t ld, bool transposed) {
  return {Dims{rows, cols}, type_of(dtype), transposed ? Dims{1, ld} : Dims{ld, 1}};
}

dnnl::matmul::primitive_desc describe(const Key& key) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  const auto a = matrix(key.m, key.k, key.dtype, key.lda, key.transpose_a);
  const auto b = matrix(key.k, key.n, key.dtype, key.ldb, key.transpose_b);
  const auto c = matrix(key.m, key.n, key.c_dtype, key.ldc, false);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), a, b, c, attr};
#else
  return {dnnl::matmul::desc(a, b, c), attr, engine()};
#endif
}

std::string to_string(const Key& key) {
  return "matrix product " + std::to_string(key.m) + "x" + std::to_string(key.n) + "x" + std::to_string(key.k) + " " +
         std::string(to_string(key.dtype)) + " -> " + std::string(to_string(key.c_dtype));
}

std::unique_ptr<Entry> create(const Key& key) {
  const OneThread one_thread;
  try {
    const dnnl::matmul::primitive_desc pd = describe(key);
    auto entry = std::make_unique<Entry>();
    entry->a = pd.src_desc();
    entry->b = pd.weights_desc();
    entry->c = pd.dst_desc();
    entry->scratchpad = pd.scratchpad_desc();
    entry->scratchpad_bytes = static_cast<int64_t>(entry->scratchpad.get_size());
    entry->primitive = dnnl::matmul(pd);
    return entry;
  } catch (const dnnl::error& e) {
    throw Error(ErrorCode::device, "oneDNN refuses a " + to_string(key) + ": " + e.message + "; try --precision fp32");
  }
}

const Entry& shared_entry(const Key& key) {
  struct Cache {
    std::shared_mutex mutex;
    std::unordered_map<Key, std::unique_ptr<Entry>, KeyHash> entries;
  };
  static auto* const cache = new Cache;
  {
    const std::shared_lock lock(cache->mutex);
    const auto found = cache->entries.find(key);
    if (found != cache->entries.end()) return *found->second;
  }
  const std::unique_lock lock(cache->mutex);
  auto& entry = cache->entries[key];
  if (!entry) {
    try {
      entry = create(key);
    } catch (...) {
      cache->entries.erase(key);
      throw;
    }
  }
  return *entry;
}

// A thread's own memory objects for a primitive, so that a call of a few microseconds neither locks nor allocates.
struct Slot {
  Key key{};
  const Entry* entry = nullptr;
  dnnl::memory a, b, c, scratchpad;
};

Slot& slot_of(const Key& key) {
  static thread_local std::array<Slot, 256> slots;
  Slot& slot = slots[KeyHash()(key) % slots.size()];
  if (slot.entry == nullptr || !(slot.key == key)) {
    const Entry& entry = shared_entry(key);
    slot.a = dnnl::memory(entry.a, engine(), nullptr);
    slot.b = dnnl::memory(entry.b, engine(), nullptr);
    slot.c = dnnl::memory(entry.c, engine(), nullptr);
    slot.scratchpad = dnnl::memory(entry.scratchpad, engine(), nullptr);
    slot.key = key;
    slot.entry = &entry;
  }
  return slot;
}

void execute(const Key& key, const void* a, const void* b, void* c, std::byte* scratchpad) {
  static thread_local dnnl::stream stream(engine());
  Slot& slot = slot_of(key);
  const OneThread one_thread;
  slot.a.set_data_handle(const_cast<void*>(a));
  slot.b.set_data_handle(const_cast<void*>(b));
  slot.c.set_data_handle(c);
  slot.scratchpad.set_data_handle(scratchpad);
  const std::array<dnnl_exec_arg_t, 4> args = {{{DNNL_ARG_SRC, slot.a.get()},
                                                {DNNL_ARG_WEIGHTS, slot.b.get()},
                                                {DNNL_ARG_DST, slot.c.get()},
                                                {DNNL_ARG_SCRATCHPAD, slot.scratchpad.get()}}};
  const dnnl_status_t status =
      dnnl_primitive_execute(slot.entry->primitive.get(), stream.get(), static_cast<int>(args.size()), args.data());
  if (status != dnnl_success) {
    throw Error(ErrorCode::device, "oneDNN failed in a " + to_string(key) + " with status " + std::to_string(status));
  }
}

bool onednn_has_bf16() {
  static const bool has = [] {
    const OneThread one_thread;
    try {
      const auto pd = describe({.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64, .dtype = DType::bf16, .c_dtype = DType::f32});
      return std::string_view(pd.impl_info_str()).find("ref") == std::string_view::npos;  // "ref" would be far too slow
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return has;
}

Key key_of(const Gemm& g) {
  return {.m = g.m, .n = g.n, .k = g.k, .lda = g.lda, .ldb = g.ldb, .ldc = g.ldc, .dtype = g.dtype, .c_dtype = g.c_dtype,
          .transpose_a = g.transpose_a, .transpose_b = g.transpose_b, .add = g.write == Write::add};
}

// The same product on float copies of the operands, packed without gaps.
Key widened_key_of(const Gemm& g) {
  Key key = key_of(g);
  key.dtype = DType::f32;
  key.lda = g.transpose_a ? g.m : g.k;
  key.ldb = g.transpose_b ? g.k : g.n;
  if (g.c_dtype == DType::bf16) {
    key.c_dtype = DType::f32;
    key.ldc = g.n;
  }
  return key;
}

int64_t round_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct WidenedScratch {
  int64_t a, b, c, scratchpad, total;  // offsets, bytes
};

WidenedScratch widened_scratch(const Gemm& g, const Entry& entry) {
  WidenedScratch s{};
  s.b = s.a + round_up(g.m * g.k * 4);
  s.c = s.b + round_up(g.k * g.n * 4);
  s.scratchpad = s.c + (g.c_dtype == DType::bf16 ? round_up(g.m * g.n * 4) : 0);
  s.total = s.scratchpad + entry.scratchpad_bytes;
  return s;
}

void widen(int64_t rows, int64_t cols, const void* from, int64_t ld, float* to) {
  for (int64_t i = 0; i < rows; ++i, to += cols) {
    const bf16* row = static_cast<const bf16*>(from) + i * ld;
    for (int64_t j = 0; j < cols; ++j) to[j] = static_cast<float>(row[j]);
  }
}

void run_widened(const Gemm& g, std::byte* scratch) {
  const Key key = widened_key_of(g);
  const WidenedScratch at = widened_scratch(g, shared_entry(key));
  auto* a = reinterpret_cast<float*>(scratch + at.a);
  auto* b = reinterpret_cast<float*>(scratch + at.b);
  widen(g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.a, g.lda, a);
  widen(g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.b, g.ldb, b);
  if (g.c_dtype == DType::f32) {
    execute(key, a, b, g.c, scratch + at.scratchpad);
    return;
  }
  auto* c = reinterpret_cast<float*>(scratch + at.c);
  execute(key, a, b, c, scratch + at.scratchpad);
  for (int64_t i = 0; i < g.m; ++i) {
    bf16* row = static_cast<bf16*>(g.c) + i * g.ldc;
    for (int64_t j = 0; j < g.n; ++j) row[j] = bf16(c[i * g.n + j]);
  }
}

// The sum over nothing.
void run_empty(const Gemm& g) {
  if (g.write == Write::add) return;
  for (int64_t i = 0; i < g.m; ++i) {
    std::memset(static_cast<std::byte*>(g.c) + i * g.ldc * size_of(g.c_dtype), 0, static_cast<size_t>(g.n * size_of(g.c_dtype)));
  }
}

void check_arguments(const Gemm& g) {
  SLUICE_ASSERT(g.m >= 0 && g.n >= 0 && g.k >= 0);
  SLUICE_ASSERT(g.dtype == DType::bf16 || g.dtype == DType::f32);
  SLUICE_ASSERT(g.c_dtype == DType::f32 || (g.c_dtype == DType::bf16 && g.dtype == DType::bf16));
  SLUICE_ASSERT(g.write == Write::set || g.c_dtype == DType::f32);
  SLUICE_ASSERT(g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) && g.ldc >= g.n);
}

bool widens(const Context& ctx, const Gemm& g) { return g.dtype == DType::bf16 && (ctx.isa == Isa::avx2 || !onednn_has_bf16()); }

}  // namespace

int64_t gemm_scratch_bytes(const Context& ctx, const Gemm& args) {
  check_arguments(args);
  if (args.m == 0 || args.n == 0 || args.k == 0) return 0;
  if (widens(ctx, args)) return widened_scratch(args, shared_entry(widened_key_of(args))).total;
  return shared_entry(key_of(args)).scratchpad_bytes;
}

void gemm_on_this_thread(const Context& ctx, const Gemm& args, std::byte* scratch) {
  check_arguments(args);
  if (args.m == 0 || args.n == 0) return;
  if (args.k == 0) return run_empty(args);
  if (widens(ctx, args)) return run_widened(args, scratch);
  execute(key_of(args), args.a, args.b, args.c, scratch);
}

}  // namespace sluice
