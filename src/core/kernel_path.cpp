#include "core/kernel_path.h"

#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace sluice {

namespace {

constexpr int64_t KiB = 1024;

// CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability": maximum amount of shared memory per thread block.
constexpr Capability listed[] = {
    {8, 0, KernelPath::portable, 163 * KiB},   // A100
    {8, 6, KernelPath::portable, 99 * KiB},    // RTX 3090, A10
    {8, 7, KernelPath::portable, 163 * KiB},   // Orin
    {8, 9, KernelPath::portable, 99 * KiB},    // RTX 4090, L40S
    {9, 0, KernelPath::sm90, 227 * KiB},       // H100, H200
    {10, 0, KernelPath::portable, 227 * KiB},  // B200
    {10, 3, KernelPath::portable, 227 * KiB},  // B300
    {11, 0, KernelPath::portable, 227 * KiB},  // Thor
    {12, 0, KernelPath::portable, 99 * KiB},   // RTX 5090
    {12, 1, KernelPath::portable, 99 * KiB},   // DGX Spark
};

}  // namespace

Capability capability(int major, int minor) {
  for (const Capability& c : listed) {
    if (c.major == major && c.minor == minor) return c;
  }
  check(
      major >= 8, ErrorCode::device,
      "compute capability " + std::to_string(major) + "." + std::to_string(minor) +
          " has no tensor cores for bf16; the CUDA backend needs 8.0 or later (A100, RTX 30 series), use device: cpu");
  return {.major = major, .minor = minor, .shared_bytes_per_block = 99 * KiB, .listed = false};
}

KernelPath kernel_path(const Capability& device, const char* forced) {
  if (forced == nullptr || *forced == '\0') return device.path;
  check(
      std::strcmp(forced, "portable") == 0, ErrorCode::bad_config,
      std::string("SLUICE_CUDA_PATH is '") + forced + "'; give portable, or leave it out for the device's own kernels");
  return KernelPath::portable;
}

KernelPath kernel_path(const Capability& device) { return kernel_path(device, std::getenv("SLUICE_CUDA_PATH")); }

std::string path_in_words(const Capability& device, const char* forced) {
  if (kernel_path(device, forced) == KernelPath::sm90) return "Hopper kernels";
  if (device.path != KernelPath::portable) return "portable kernels (SLUICE_CUDA_PATH)";
  return device.listed ? "portable kernels"
                       : "portable kernels: this compute capability is later than those that sluice knows";
}

}  // namespace sluice
