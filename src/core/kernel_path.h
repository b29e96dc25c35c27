// Which kernels of the CUDA backend a device runs: a table of compute capabilities, compared by equality, since a later one need not have what
// an earlier one has (12.0 has neither 9.0's instructions nor its shared memory). Asks no driver.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

enum class KernelPath {
  sm90,     // wgmma and the bulk tensor copy engine; built for sm_90a, which runs on 9.0 alone
  portable  // mma.sync, ldmatrix and cp.async, from 8.0 on
};

struct Capability {
  int major = 0, minor = 0;
  KernelPath path = KernelPath::portable;
  int64_t shared_bytes_per_block = 0;  // the most that a block can ask for
  bool listed = true;                  // false: later than the table, taken for the smallest of its cards
};

// Throws Error(device) below 8.0, saying what has which capability.
Capability capability(int major, int minor);

// The path of a device: the table's, or portable where `forced` says so. `forced` is the value of SLUICE_CUDA_PATH, null where it is not set.
// Throws Error(bad_config) where it is something else.
KernelPath kernel_path(const Capability& device, const char* forced);
// The same with the environment's SLUICE_CUDA_PATH.
KernelPath kernel_path(const Capability& device);

// For doctor: "Hopper kernels", "portable kernels (SLUICE_CUDA_PATH)", …
std::string path_in_words(const Capability& device, const char* forced);

}  // namespace sluice
