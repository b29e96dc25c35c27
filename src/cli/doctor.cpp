// sluice doctor: what this machine has, and whether the program can use it.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "cli/command.h"
#include "core/bytes.h"
#include "core/device.h"
#include "core/kernel_path.h"
#include "core/system_memory.h"
#include "core/version.h"
#include "ops/gemm/gemm.h"

namespace sluice {

namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string cpu_flags() {
  std::string found;
  const std::pair<const char*, bool> flags[] = {
      {"AVX2", __builtin_cpu_supports("avx2") != 0},
      {"AVX-512", __builtin_cpu_supports("avx512f") != 0},
      {"AVX-512 VNNI", __builtin_cpu_supports("avx512vnni") != 0},
  };
  for (const auto& [name, has] : flags) found += has ? fmt::format("{}{}", found.empty() ? "" : ", ", name) : "";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("flags")) continue;
    if (line.find(" avx512_bf16") != std::string::npos) found += ", AVX-512 BF16";
    if (line.find(" amx_bf16") != std::string::npos) found += ", AMX BF16";
    break;
  }
  return found;
}

// Which kernels will run there, or why none will.
std::string kernels_of(const DeviceInfo& device) {
  try {
    return path_in_words(capability(device.major, device.minor), std::getenv("SLUICE_CUDA_PATH"));
  } catch (const Error& e) {
    return e.what();
  }
}

void doctor() {
  fmt::print("sluice {}\n", version);
  fmt::print("CPU          {}\n", cpu_name());
  fmt::print("threads      {} usable\n", ThreadPool::default_threads());
  fmt::print("instructions {}\n", cpu_flags());
  fmt::print("kernels      {}\n", detect_isa() == Isa::avx512 ? "AVX-512" : "AVX2");
  fmt::print("bf16 product {}\n", gemm_bf16_native() ? "native in oneDNN" : "operands widened to f32 (slower)");
  fmt::print("memory       {} available\n", format_bytes(available_memory()));
  try {
    const std::vector<DeviceInfo> devices = cuda_devices();
    if (devices.empty()) fmt::print("CUDA         the backend is here, the driver shows no device\n");
    for (size_t i = 0; i < devices.size(); ++i) {
      const DeviceInfo& d = devices[i];
      fmt::print("cuda:{}       {}, compute {}.{}, {} multiprocessors, {} of {} free, driver for CUDA {}.{}, {}\n", i,
                 d.name, d.major, d.minor, d.num_multiprocessors, format_bytes(d.free_bytes),
                 format_bytes(d.total_bytes), d.driver_version / 1000, d.driver_version % 1000 / 10, kernels_of(d));
    }
  } catch (const Error& e) {
    fmt::print("CUDA         {}\n", e.what());
  }
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Show what this machine has and which kernels will run");
  command->callback(doctor);
}

}  // namespace sluice
