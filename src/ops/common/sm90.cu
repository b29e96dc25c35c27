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

struct Element {
  CUtensorMapDataType type;
  int bytes;
  CUtensorMapL2promotion promotion;
};
constexpr Element bf16_element = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, CU_TENSOR_MAP_L2_PROMOTION_L2_256B},
                  f32_element = {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, CU_TENSOR_MAP_L2_PROMOTION_NONE};

CUtensorMap encode(const void* data, const Element& element, int rank, const cuuint64_t* sizes,
                   const cuuint64_t* strides, const cuuint32_t* box) {
  CUtensorMap map;
  const cuuint32_t steps[3] = {1, 1, 1}, line_bytes = box[0] * static_cast<cuuint32_t>(element.bytes);
  const CUtensorMapSwizzle swizzle = line_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : line_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : line_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                        : CU_TENSOR_MAP_SWIZZLE_NONE;
  const CUresult status = encode_function()(&map, element.type, static_cast<cuuint32_t>(rank), const_cast<void*>(data),
                                            sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                            element.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS, ErrorCode::device,
        "describing a matrix to the copy engine: the driver says " + std::to_string(static_cast<int>(status)));
  return map;
}

CUtensorMap encode_heads(const void* data, const Element& element, int64_t rows, int64_t heads, int64_t head_dim,
                         int box_rows, int box_cols) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(heads),
                               static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head_dim * element.bytes),
                                 static_cast<cuuint64_t>(heads * head_dim * element.bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_cols), 1, static_cast<cuuint32_t>(box_rows)};
  return encode(data, element, 3, sizes, strides, box);
}

}  // namespace

CUtensorMap tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows, int box_cols) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  return encode(data, bf16_element, 2, sizes, strides, box);
}

CUtensorMap tensor_map_heads(const void* data, int64_t rows, int64_t heads, int64_t head_dim, int box_rows,
                             int box_cols) {
  return encode_heads(data, bf16_element, rows, heads, head_dim, box_rows, box_cols);
}

CUtensorMap tensor_map_heads_f32(const float* data, int64_t rows, int64_t heads, int64_t head_dim, int box_rows) {
  return encode_heads(data, f32_element, rows, heads, head_dim, box_rows, 32);
}

}  // namespace sluice::cuda
