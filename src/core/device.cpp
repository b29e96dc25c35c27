#include "core/device.h"

#include <algorithm>

#include "core/cuda_library.h"

namespace sluice {

namespace {

template <class Function>
Function entry(const char* name) {
  return reinterpret_cast<Function>(cuda_symbol(name));
}

}  // namespace

Device parse_device(const std::string& name) {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda();
  const std::string prefix = "cuda:", index = name.substr(std::min(name.size(), prefix.size()));
  check(name.starts_with(prefix) && !index.empty() && index.size() <= 2 &&
            index.find_first_not_of("0123456789") == std::string::npos,
        ErrorCode::bad_config, "device is '" + name + "'; give cpu, cuda or cuda:1");
  return Device::cuda(std::stoi(index));
}

std::vector<DeviceInfo> cuda_devices() {
  static const auto list = entry<void (*)(std::vector<DeviceInfo>&)>("devices");
  std::vector<DeviceInfo> devices;
  list(devices);
  return devices;
}

bool is_here(Device device) {
  if (device.type == DeviceType::cpu) return true;
  static const auto count = entry<int (*)()>("device_count");
  return device.index < count();
}

DeviceMemory memory_of(Device device) {
  static const auto query = entry<void (*)(int, DeviceMemory&)>("memory");
  DeviceMemory memory;
  query(device.index, memory);
  return memory;
}

std::byte* device_allocate(Device device, int64_t bytes) {
  static const auto allocate = entry<std::byte* (*)(int, int64_t)>("allocate");
  return allocate(device.index, bytes);
}

void device_free(Device device, std::byte* memory) noexcept {
  if (memory == nullptr) return;
  static const auto free = entry<void (*)(int, std::byte*)>("free");  // it is there: the memory came from it
  free(device.index, memory);
}

std::byte* pinned_allocate(int64_t bytes) {
  static const auto allocate = entry<std::byte* (*)(int64_t)>("pinned_allocate");
  return allocate(bytes);
}

void pinned_free(std::byte* memory, int64_t bytes) noexcept {
  if (memory == nullptr) return;
  static const auto free = entry<void (*)(std::byte*, int64_t)>("pinned_free");
  free(memory, bytes);
}

void synchronize(Device device) {
  if (device.type == DeviceType::cpu) return;
  static const auto wait = entry<void (*)(int)>("synchronize");
  wait(device.index);
}

DeviceTimer::DeviceTimer(Device device) : device_(device) {
  static const auto make = entry<void* (*)(int)>("timer_make");
  events_ = make(device.index);
}

DeviceTimer::~DeviceTimer() {
  static const auto free = entry<void (*)(void*)>("timer_free");
  free(events_);
}

void DeviceTimer::start() {
  static const auto record = entry<void (*)(int, void*)>("timer_start");
  record(device_.index, events_);
}

double DeviceTimer::stop() {
  static const auto elapsed = entry<double (*)(int, void*)>("timer_stop");
  return elapsed(device_.index, events_);
}

GraphCapture::GraphCapture(const Context& ctx, int64_t num_tokens)
    : ctx_(ctx),
      active_(ctx.device.type == DeviceType::cuda && !ctx.counting() && num_tokens <= most_tokens &&
              !CudaOp::one_by_one()) {
  if (!active_) return;
  static const auto begin = entry<void (*)(const Context&)>("capture_begin");
  begin(ctx);
  CudaOp::capturing = true;
}

GraphCapture::~GraphCapture() {
  if (!active_) return;
  CudaOp::capturing = false;
  static const auto drop = entry<void (*)(const Context&)>("capture_drop");
  drop(ctx_);
}

void GraphCapture::launch() {
  if (!active_) return;
  CudaOp::capturing = active_ = false;
  static const auto launch = entry<void (*)(const Context&)>("capture_launch");
  launch(ctx_);
  CudaOp(ctx_, "a graph of ops").done();
}

void device_random(Device device, void* memory, DType dtype, int64_t count, uint64_t seed, float scale) {
  static const auto fill = entry<void (*)(int, void*, DType, int64_t, uint64_t, float)>("random");
  fill(device.index, memory, dtype, count, seed, scale);
}

}  // namespace sluice
