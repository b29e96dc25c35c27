// A CUDA device takes work from one host thread at a time: what another launches while a graph is captured would land in it (core/device.h). On
// the CPU nothing is held.
#pragma once

#include <mutex>

#include "core/arena.h"

namespace sluice {

inline std::unique_lock<std::mutex> device_turn(Device device) {
  static std::mutex mutex;
  return device.type == DeviceType::cuda ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
}

}  // namespace sluice
