#include "ops/gemm/gemm_cublas.cuh"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

// 64 x 64 of C a block, 4 x 4 a thread; k in order, one fused multiply-add after the other.
constexpr int tile = 64, tile_k = 16, threads = 256;

template <class T>
__global__ void __launch_bounds__(threads) plain_kernel(const __grid_constant__ PlainGemm g) {
  __shared__ float a[tile_k][tile + 4], b[tile_k][tile + 4];
  const T* const from_a = static_cast<const T*>(g.a) + blockIdx.z * g.stride_a;
  const T* const from_b = static_cast<const T*>(g.b) + blockIdx.z * g.stride_b;
  float* const c = g.c + blockIdx.z * g.stride_c;
  const int64_t m0 = int64_t{blockIdx.y} * tile, n0 = int64_t{blockIdx.x} * tile;
  const int thread = static_cast<int>(threadIdx.x), down = thread / 16 * 4, right = thread % 16 * 4;
  float acc[4][4] = {};
  // [tile_k][tile] of an operand that lies as [mn, k] (or [k, mn]), contiguous reads first.
  const auto load = [&](float(&to)[tile_k][tile + 4], const T* from, int64_t ld, bool k_outer, int64_t mn0,
                        int64_t extent, int64_t k0) {
#pragma unroll
    for (int i = 0; i < tile * tile_k / threads; ++i) {
      const int at = thread + i * threads;
      const int mn = k_outer ? at % tile : at / tile_k, k = k_outer ? at / tile : at % tile_k;
      const bool inside = mn0 + mn < extent && k0 + k < g.k;
      const int64_t offset = k_outer ? (k0 + k) * ld + mn0 + mn : (mn0 + mn) * ld + k0 + k;
      to[k][mn] = inside ? to_float(from[offset]) : 0.0F;
    }
  };
  for (int64_t k0 = 0; k0 < g.k; k0 += tile_k) {
    load(a, from_a, g.lda, g.transpose_a, m0, g.m, k0);
    load(b, from_b, g.ldb, !g.transpose_b, n0, g.n, k0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < tile_k; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(&a[k][down]),
                   y = *reinterpret_cast<const float4*>(&b[k][right]);
      const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(xs[i], ys[j], acc[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = m0 + down + i, col = n0 + right + j;
      if (row >= g.m || col >= g.n) continue;
      float* const to = c + row * g.ldc + col;
      *to = g.add ? *to + acc[i][j] : acc[i][j];
    }
  }
}

void check_cublas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, ErrorCode::device,
        std::string(what) + ": cuBLASLt says " + cublasLtGetStatusString(status));
}

// Descriptions own what cuBLASLt hands out.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  ~Owned() {
    if (handle != nullptr) destroy(handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// cuBLASLt counts columns first: it forms C^T = op(B)^T op(A)^T, whose columns are our rows.
struct Description {
  Operation operation;
  Layout a, b, c;  // in its naming: a is our B

  Description(const PlainGemm& g, int64_t m) {
    const cudaDataType type = g.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const char* what = "describing a matrix product";
    check_cublas(cublasLtMatmulDescCreate(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), what);
    const cublasOperation_t of_a = g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_cublas(cublasLtMatmulDescSetAttribute(operation.handle, CUBLASLT_MATMUL_DESC_TRANSA, &of_a, sizeof of_a),
                 what);
    const auto layout = [&](Layout& to, cudaDataType t, int64_t rows, int64_t cols, int64_t ld) {
      check_cublas(
          cublasLtMatrixLayoutCreate(&to.handle, t, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
          what);
    };
    layout(a, type, g.transpose_b ? g.k : g.n, g.transpose_b ? g.n : g.k, g.ldb);
    layout(b, type, g.k, m, g.lda);
    layout(c, CUDA_R_32F, g.n, m, g.ldc);
  }
};

// cuBLASLt on one device, for the life of the process.
struct Library {
  cublasLtHandle_t handle = nullptr;
  using Key = std::tuple<int64_t, int64_t, int, int64_t, int64_t, bool, int64_t, bool>;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms;

  Library() { check_cublas(cublasLtCreate(&handle), "starting cuBLASLt"); }

  // The algorithm for all m: chosen for `usual_rows`, without workspace and without split sums; none when there is no
  // such algorithm.
  std::optional<cublasLtMatmulAlgo_t> algorithm(const PlainGemm& g) {
    constexpr int64_t usual_rows = 4096;
    const Key key{g.n, g.k, static_cast<int>(g.dtype), g.lda, g.ldb, g.transpose_b, g.ldc, g.add};
    if (const auto found = algorithms.find(key); found != algorithms.end()) return found->second;
    const Description d(g, usual_rows);
    Preference preference;
    const char* what = "choosing an algorithm for a matrix product";
    check_cublas(cublasLtMatmulPreferenceCreate(&preference.handle), what);
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference.handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &scheme, sizeof scheme),
                 what);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &alignment, sizeof alignment),
                   what);
    }
    constexpr int wanted = 16;
    cublasLtMatmulHeuristicResult_t results[wanted];
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, d.operation.handle, d.a.handle, d.b.handle, d.c.handle, d.c.handle,
                                       preference.handle, wanted, results, &count);
    if (status != CUBLAS_STATUS_SUCCESS) count = 0;
    std::optional<cublasLtMatmulAlgo_t> chosen;
    for (int i = 0; i < count && !chosen; ++i) {
      int32_t split = 1;
      size_t written = 0;
      if (results[i].state != CUBLAS_STATUS_SUCCESS || results[i].workspaceSize != 0) continue;
      cublasLtMatmulAlgoConfigGetAttribute(&results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split,
                                           &written);
      if (split <= 1) chosen = results[i].algo;
    }
    algorithms.emplace(key, chosen);
    return chosen;
  }
};

bool run_cublas(const DeviceFacts& facts, const PlainGemm& g) {
  static std::mutex mutex;
  static std::map<int, Library> libraries;
  const std::scoped_lock lock(mutex);
  Library& library = libraries[facts.index];
  const auto algorithm = library.algorithm(g);
  if (!algorithm) return false;
  const Description d(g, g.m);
  const float one = 1, zero = 0;
  const cublasStatus_t status =
      cublasLtMatmul(library.handle, d.operation.handle, &one, g.b, d.a.handle, g.a, d.b.handle, g.add ? &one : &zero,
                     g.c, d.c.handle, g.c, d.c.handle, &*algorithm, nullptr, 0, facts.stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;  // for these rows: the plain kernel takes them
  check_cublas(status, "multiplying matrices");
  return true;
}

// By the shape of a row alone, so that a row's bits do not depend on how many rows there are.
bool suits_cublas(const PlainGemm& g) {
  const int64_t size = size_of(g.dtype);
  const auto aligned = [](const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && bytes % 16 == 0;
  };
  return g.batch == 1 && !g.transpose_a && g.n >= 256 && g.k >= 256 && aligned(g.a, g.lda * size) &&
         aligned(g.b, g.ldb * size) && aligned(g.c, g.ldc * 4);
}

}  // namespace

void plain_gemm(const Context& ctx, const PlainGemm& g) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  const DeviceFacts& facts = facts_of(ctx);
  if (suits_cublas(g) && run_cublas(facts, g)) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(g.n, tile)), static_cast<unsigned>(ceil_div(g.m, tile)),
                  static_cast<unsigned>(g.batch));
  with_type(g.dtype, [&]<class T>() { plain_kernel<T><<<grid, threads, 0, facts.stream>>>(g); });
  check_launch("multiplying matrices");
}

}  // namespace sluice::cuda
