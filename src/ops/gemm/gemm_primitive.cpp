#include "ops/gemm/gemm_primitive.h"

#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/address_space.h"
#include "core/error.h"

namespace sluice {

namespace {

using Dims = dnnl::memory::dims;

struct KeyHash {
  size_t operator()(const GemmKey& key) const {
    uint64_t h = 0;
    const auto mix = [&h](uint64_t v) { h = (h ^ v) * 0x9E3779B97F4A7C15ULL, h ^= h >> 29; };
    for (int64_t v : {key.m, key.n, key.k, key.lda, key.ldb, key.ldc}) mix(static_cast<uint64_t>(v));
    mix(static_cast<uint64_t>(key.dtype) | static_cast<uint64_t>(key.c_dtype) << 8 |
        static_cast<uint64_t>(key.transpose_a) << 16 | static_cast<uint64_t>(key.transpose_b) << 17 |
        static_cast<uint64_t>(key.add) << 18);
    return h;
  }
};

struct Entry {
  dnnl::memory::desc a, b, c, scratchpad;
  dnnl::matmul primitive;
  int64_t scratchpad_bytes = 0;
  bool usual = true;
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

// The first implementation whose name has `wanted` in it.
dnnl::matmul::primitive_desc describe(const GemmKey& key, std::string_view wanted) {
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
  dnnl::matmul::primitive_desc pd(engine(), a, b, c, attr);
#else
  dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, b, c), attr, engine());
#endif
  while (std::string_view(pd.impl_info_str()).find(wanted) == std::string_view::npos) {
    if (!pd.next_impl()) throw dnnl::error(dnnl_unimplemented, "no such implementation");
  }
  return pd;
}

// The kernel of a product that is not small.
const std::string& usual_kernel(DType dtype) {
  static const std::array<std::string, 2> names = [] {
    std::array<std::string, 2> found;
    for (DType type : {DType::f32, DType::bf16}) {
      if (!has_brgemm(type)) continue;
      found[type == DType::bf16] =
          describe(
              {.m = 256, .n = 256, .k = 256, .lda = 256, .ldb = 256, .ldc = 256, .dtype = type, .c_dtype = DType::f32},
              "brg")
              .impl_info_str();
    }
    return found;
  }();
  return names[dtype == DType::bf16];
}

std::string to_string(const GemmKey& key) {
  return "matrix product " + std::to_string(key.m) + "x" + std::to_string(key.n) + "x" + std::to_string(key.k) + " " +
         std::string(to_string(key.dtype)) + " -> " + std::string(to_string(key.c_dtype));
}

// oneDNN 2.6 reads where it could not map room for a kernel's code; what it takes for one, with some to spare.
constexpr int64_t kernel_bytes = 16 << 20;

std::unique_ptr<Entry> create(const GemmKey& key) {
  const OneThread one_thread;
  check_address_space(kernel_bytes);
  try {
    const dnnl::matmul::primitive_desc pd = describe(key, has_brgemm(key.dtype) ? "brg" : "");
    auto entry = std::make_unique<Entry>();
    entry->a = pd.src_desc();
    entry->b = pd.weights_desc();
    entry->c = pd.dst_desc();
    entry->scratchpad = pd.scratchpad_desc();
    entry->scratchpad_bytes = static_cast<int64_t>(entry->scratchpad.get_size());
    entry->primitive = dnnl::matmul(pd);
    entry->usual = usual_kernel(key.dtype) == pd.impl_info_str();
    return entry;
  } catch (const dnnl::error& e) {
    throw Error(ErrorCode::device, "oneDNN refuses a " + to_string(key) + ": " + e.message + "; try --precision fp32");
  }
}

const Entry& shared_entry(const GemmKey& key) {
  struct Cache {
    std::shared_mutex mutex;
    std::unordered_map<GemmKey, std::unique_ptr<Entry>, KeyHash> entries;
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
  GemmKey key{};
  const Entry* entry = nullptr;
  dnnl::memory a, b, c, scratchpad;
};

Slot& slot_of(const GemmKey& key) {
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

}  // namespace

bool has_brgemm(DType dtype) {
  static const std::array<bool, 2> has = [] {
    std::array<bool, 2> found{};
    for (DType type : {DType::f32, DType::bf16}) {
      const OneThread one_thread;
      try {
        describe({.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64, .dtype = type, .c_dtype = DType::f32},
                 "brg");
        found[type == DType::bf16] = true;
      } catch (const dnnl::error&) {
      }
    }
    return found;
  }();
  return has[dtype == DType::bf16];
}

bool has_usual_kernel(const GemmKey& key) { return slot_of(key).entry->usual; }

int64_t primitive_longest_sum(DType dtype) {
  static const bool amx = usual_kernel(DType::bf16).find("amx") != std::string::npos;
  return amx && dtype == DType::bf16 ? 512 : 0;
}

int64_t primitive_scratch_bytes(const GemmKey& key) { return slot_of(key).entry->scratchpad_bytes; }

void run_primitive(const GemmKey& key, const void* a, const void* b, void* c, std::byte* scratchpad) {
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

}  // namespace sluice
