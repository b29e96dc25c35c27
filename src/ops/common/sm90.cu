#include "ops/common/sm90.cuh"

#include <string>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: the backend links no libcuda.
Encode encode_function() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
               "looking up cuTensorMapEncodeTiled");
    check(found != nullptr && result == cudaDriverEntryPointSuccess, ErrorCode::device,
          "the driver has no cuTensorMapEncodeTiled; install a driver for CUDA 13");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

CUtensorMap encode(const void* data, int rank, const cuuint64_t* sizes, const cuuint64_t* strides,
                   const cuuint32_t* box) {
  CUtensorMap map;
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUtensorMapSwizzle swizzle = box[0] == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : box[0] == 16 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                    : CU_TENSOR_MAP_SWIZZLE_NONE;
  const CUresult status =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(rank), const_cast<void*>(data),
                        sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, ErrorCode::device,
        "describing a matrix to the copy engine: the driver says " + std::to_string(static_cast<int>(status)));
  return map;
}

}  // namespace

CUtensorMap tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows, int box_cols) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  return encode(data, 2, sizes, strides, box);
}

CUtensorMap tensor_map_heads(const void* data, int64_t rows, int64_t heads, int64_t head_dim, int box_rows,
                             int box_cols) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(heads),
                               static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head_dim) * 2, static_cast<cuuint64_t>(heads * head_dim) * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_cols), 1, static_cast<cuuint32_t>(box_rows)};
  return encode(data, 3, sizes, strides, box);
}

}  // namespace sluice::cuda
