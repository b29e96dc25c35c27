// The device behind core/device.h: contexts, streams, memory, timers.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/device.h"
#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

constexpr int max_devices = 64;

int count_devices() {
  int driver = 0, count = 0;
  check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version");
  if (driver == 0) return 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice) return 0;
  check_cuda(status, "counting CUDA devices");
  return count;
}

const DeviceFacts& facts(int index) {
  static std::array<DeviceFacts, max_devices> all;
  static std::array<std::once_flag, max_devices> once;
  check(index >= 0 && index < max_devices, ErrorCode::device,
        "CUDA device " + std::to_string(index) + " does not exist");
  std::call_once(once[static_cast<size_t>(index)], [&] {
    const int count = count_devices();
    check(index < count, ErrorCode::device,
          count == 0
              ? "there is no CUDA device, or no NVIDIA driver; use device: cpu"
              : "CUDA device " + std::to_string(index) + " does not exist; the driver shows " + std::to_string(count));
    check_cuda(cudaSetDevice(index), "choosing a CUDA device");
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "asking a CUDA device what it is");
    DeviceFacts& f = all[static_cast<size_t>(index)];
    f.index = index;
    try {
      f.path = kernel_path(capability(properties.major, properties.minor));
    } catch (Error& e) {
      e.while_doing(properties.name);
      throw;
    }
    f.num_multiprocessors = properties.multiProcessorCount;
    f.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    check_cuda(cudaStreamCreateWithFlags(&f.stream, cudaStreamNonBlocking), "making a CUDA stream");
  });
  static thread_local int current = -1;
  if (current != index) {
    check_cuda(cudaSetDevice(index), "choosing a CUDA device");
    current = index;
  }
  return all[static_cast<size_t>(index)];
}

// A hash of 64 bits (splitmix64: Steele et al. 2014).
__device__ uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Sums of four uniform numbers: near enough to normal for benchmarks.
template <class T>
__global__ void random_kernel(T* out, int64_t count, uint64_t seed, float scale) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = mixed(seed * 0xD1342543DE82EF95ULL + static_cast<uint64_t>(i));
    float sum = -2;
#pragma unroll
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((bits >> (16 * part)) & 0xFFFFU) * 0x1p-16F;
    out[i] = from_float<T>(sum * 1.7320508F * scale);
  }
}

size_t pinned_size(int64_t bytes) { return (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 4095) / 4096 * 4096; }

// Makes fresh pages resident, by several threads: the system clears them at several GB/s each, and pinning them afterwards is quick.
void touch(std::byte* memory, size_t size) {
  constexpr size_t least = size_t{64} << 20;
  const size_t most = std::min<size_t>(8, std::max(1U, std::thread::hardware_concurrency()));
  const size_t count = std::clamp<size_t>(size / least, 1, most), share = size / count / 4096 * 4096;
  const auto touch_share = [=](size_t t) {
    const size_t end = t + 1 == count ? size : (t + 1) * share;
    for (size_t at = t * share; at < end; at += 4096) memory[at] = std::byte{0};
  };
  std::vector<std::jthread> threads;
  size_t t = 0;
  try {
    for (; t + 1 < count; ++t) threads.emplace_back(touch_share, t);
  } catch (const std::system_error&) {  // no more threads: this one takes the rest
  }
  for (; t < count; ++t) touch_share(t);
}

struct Timer {
  cudaEvent_t begin = nullptr, end = nullptr;
};

}  // namespace

// A step is priced without a device as an H200 would run it.
const DeviceFacts& facts_of(const Context& ctx) {
  if (ctx.counting()) {
    static const bool has_devices = count_devices() > 0;
    static const DeviceFacts h200{
        .path = kernel_path(capability(9, 0)), .num_multiprocessors = 132, .shared_bytes_per_block = 227 << 10};
    if (!has_devices) return h200;
  }
  return facts(ctx.device.index);
}

}  // namespace sluice::cuda

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

namespace cuda = sluice::cuda;

SLUICE_EXPORT int sluice_cuda_device_count() { return cuda::count_devices(); }

// The device that is current stays so: facts() remembers it.
SLUICE_EXPORT void sluice_cuda_devices(std::vector<sluice::DeviceInfo>& devices) {
  const int count = cuda::count_devices();
  if (count == 0) return;
  int current = 0;
  cuda::check_cuda(cudaGetDevice(&current), "asking for the current CUDA device");
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    cuda::check_cuda(cudaGetDeviceProperties(&properties, i), "asking a CUDA device what it is");
    sluice::DeviceInfo info;
    info.name = properties.name;
    info.major = properties.major;
    info.minor = properties.minor;
    info.num_multiprocessors = properties.multiProcessorCount;
    size_t free = 0, total = 0;
    cuda::check_cuda(cudaSetDevice(i), "choosing a CUDA device");
    cuda::check_cuda(cudaMemGetInfo(&free, &total), "asking a CUDA device for its memory");
    info.free_bytes = static_cast<int64_t>(free);
    info.total_bytes = static_cast<int64_t>(total);
    cuda::check_cuda(cudaDriverGetVersion(&info.driver_version), "asking for the driver's version");
    cuda::check_cuda(cudaRuntimeGetVersion(&info.runtime_version), "asking for CUDA's version");
    devices.push_back(std::move(info));
  }
  cuda::check_cuda(cudaSetDevice(current), "choosing a CUDA device");
}

SLUICE_EXPORT void sluice_cuda_memory(int device, sluice::DeviceMemory& memory) {
  cuda::facts(device);
  size_t free = 0, total = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &total), "asking the device for its memory");
  memory = {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

SLUICE_EXPORT std::byte* sluice_cuda_allocate(int device, int64_t bytes) {
  cuda::facts(device);
  void* memory = nullptr;
  cuda::check_cuda(cudaMalloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1)),
                   ("allocating " + std::to_string(bytes >> 20) + " MiB on the device").c_str());
  return static_cast<std::byte*>(memory);
}

SLUICE_EXPORT void sluice_cuda_free(int /*device*/, std::byte* memory) { cudaFree(memory); }

SLUICE_EXPORT std::byte* sluice_cuda_pinned_allocate(int64_t bytes) {
  const size_t size = cuda::pinned_size(bytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto refused = [&](const char* by) {
    throw sluice::Error(sluice::ErrorCode::out_of_memory, "pinning " + std::to_string(bytes >> 20) +
                                                              " MiB of host memory: " + by +
                                                              "; free some, lower host_memory or give offload: false");
  };
  if (memory == MAP_FAILED) refused("the system refused them");
  madvise(memory, size, MADV_HUGEPAGE);
  cuda::touch(static_cast<std::byte*>(memory), size);
  const cudaError_t pinned = cudaHostRegister(memory, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (pinned != cudaSuccess) {
    munmap(memory, size);
    refused(cudaGetErrorString(pinned));
  }
  return static_cast<std::byte*>(memory);
}

SLUICE_EXPORT void sluice_cuda_pinned_free(std::byte* memory, int64_t bytes) {
  cudaDeviceSynchronize();  // after an error copies may still be on their way
  cudaHostUnregister(memory);
  munmap(memory, cuda::pinned_size(bytes));
}

SLUICE_EXPORT void sluice_cuda_synchronize(int device) {
  cuda::check_cuda(cudaStreamSynchronize(cuda::facts(device).stream), "waiting for the device");
}

SLUICE_EXPORT void* sluice_cuda_timer_make(int device) {
  cuda::facts(device);
  auto* timer = new cuda::Timer;
  cuda::check_cuda(cudaEventCreate(&timer->begin), "making a CUDA event");
  cuda::check_cuda(cudaEventCreate(&timer->end), "making a CUDA event");
  return timer;
}

SLUICE_EXPORT void sluice_cuda_timer_free(void* events) {
  auto* timer = static_cast<cuda::Timer*>(events);
  cudaEventDestroy(timer->begin);
  cudaEventDestroy(timer->end);
  delete timer;
}

SLUICE_EXPORT void sluice_cuda_timer_start(int device, void* events) {
  cuda::check_cuda(cudaEventRecord(static_cast<cuda::Timer*>(events)->begin, cuda::facts(device).stream), "timing");
}

SLUICE_EXPORT double sluice_cuda_timer_stop(int device, void* events) {
  auto* timer = static_cast<cuda::Timer*>(events);
  cuda::check_cuda(cudaEventRecord(timer->end, cuda::facts(device).stream), "timing");
  cuda::check_cuda(cudaEventSynchronize(timer->end), "timing");
  float milliseconds = 0;
  cuda::check_cuda(cudaEventElapsedTime(&milliseconds, timer->begin, timer->end), "timing");
  return static_cast<double>(milliseconds);
}

SLUICE_EXPORT void sluice_cuda_random(int device, void* memory, sluice::DType dtype, int64_t count, uint64_t seed,
                                      float scale) {
  const cudaStream_t stream = cuda::facts(device).stream;
  if (count == 0) return;
  cuda::with_type(dtype, [&]<class T>() {
    cuda::random_kernel<<<1024, 256, 0, stream>>>(static_cast<T*>(memory), count, seed, scale);
  });
  cuda::check_launch("random numbers");
}
