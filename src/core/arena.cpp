#include "core/arena.h"

#include <sys/mman.h>

#include "core/bytes.h"
#include "core/device.h"

namespace sluice {

namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

void Arena::Release::operator()(std::byte* p) const {
  switch (kind) {
    case Kind::mapped: munmap(p, static_cast<size_t>(bytes)); break;
    case Kind::device: device_free(device, p); break;
    case Kind::pinned: pinned_free(p, bytes); break;
    case Kind::part: break;
  }
}

Arena Arena::counting(Device device) { return Arena(device); }

// What an arena hands out is whole units of `alignment`, so its capacity is too.
Arena Arena::allocate(Device device, int64_t capacity_bytes) {
  capacity_bytes = round_up(capacity_bytes, alignment);
  if (device.type == DeviceType::cuda) {
    Arena arena(device);
    arena.memory_ = {device_allocate(device, capacity_bytes), Release{Kind::device, device, capacity_bytes}};
    arena.capacity_ = capacity_bytes;
    return arena;
  }
  const int64_t mapped = round_up(capacity_bytes > 0 ? capacity_bytes : 1, 4096);
  void* p = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  check(p != MAP_FAILED, ErrorCode::out_of_memory,
        "the system refused an arena of " + format_bytes(capacity_bytes) +
            "; give a smaller --memory or a shorter max_seq_length");
  Arena arena(device);
  arena.memory_ = {static_cast<std::byte*>(p), Release{Kind::mapped, device, mapped}};
  arena.capacity_ = capacity_bytes;
  return arena;
}

Arena Arena::pinned(int64_t capacity_bytes) {
  capacity_bytes = round_up(capacity_bytes, alignment);
  Arena arena(Device::cpu());
  arena.memory_ = {pinned_allocate(capacity_bytes), Release{Kind::pinned, Device::cpu(), capacity_bytes}};
  arena.capacity_ = capacity_bytes;
  return arena;
}

Arena Arena::part_of(Arena& whole, int64_t capacity_bytes) {
  capacity_bytes = round_up(capacity_bytes, alignment);
  Arena arena(whole.device_);
  std::byte* memory = whole.bytes(capacity_bytes);
  if (whole.is_counting()) return arena;
  arena.memory_ = {memory, Release{Kind::part, whole.device_, capacity_bytes}};
  arena.capacity_ = capacity_bytes;
  return arena;
}

std::byte* Arena::bytes(int64_t count) {
  SLUICE_ASSERT(count >= 0);
  const int64_t begin = used_;
  const int64_t end = begin + round_up(count, alignment);
  if (!is_counting() && end > capacity_) {
    throw Error(ErrorCode::out_of_memory, "an arena of " + format_bytes(capacity_) +
                                              " is full: " + format_bytes(used_) + " used, " + format_bytes(count) +
                                              " more asked for; the plan did not foresee this");
  }
  used_ = end;
  if (end > peak_) peak_ = end;
  // Counting: an address that is not null and not mapped, so that a stray read stops at once.
  std::byte* base = is_counting() ? reinterpret_cast<std::byte*>(alignment) : memory_.get();
  return base + begin;
}

Tensor Arena::tensor(DType dtype, Shape shape) {
  return {.data = bytes(shape.numel() * size_of(dtype)), .dtype = dtype, .shape = shape};
}

}  // namespace sluice
