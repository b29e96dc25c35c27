#include "support/device_heap.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace sluice::test {

namespace {

// The block is cut into slabs of 1 MiB. A slab holds pieces of one size class, or is the first of a large piece's slabs. Classes
// are multiples of 256 bytes with four steps to each doubling; a freed piece waits in its class's list.
constexpr size_t unit = 256, slab_bytes = size_t{1} << 20, max_slabs = 1 << 15;
constexpr int num_classes = 128;

struct Free {
  Free* next;
};

struct Heap {
  std::mutex mutex;
  std::byte *begin = nullptr, *end = nullptr, *unused = nullptr;  // unused: the slabs from here on
  std::array<Free*, num_classes> free{};
  std::array<uint8_t, max_slabs> class_of_slab{};
};
constinit Heap heap;

// 0, 1, 2, 3 for 1 to 4 units, then four classes to each power of two.
constexpr int class_of(size_t bytes) {
  const size_t units = std::max<size_t>((bytes + unit - 1) / unit, 1);
  if (units <= 4) return static_cast<int>(units) - 1;
  const int log = static_cast<int>(std::bit_width(units - 1)) - 1;  // 2^log < units <= 2^(log + 1)
  const size_t step = size_t{1} << (log - 2);
  return 4 * (log - 1) + static_cast<int>((units - (size_t{1} << log) + step - 1) / step) - 1;
}
constexpr size_t bytes_of_class(int index) {
  if (index < 4) return (static_cast<size_t>(index) + 1) * unit;
  const int log = index / 4 + 1;
  return ((size_t{1} << log) + (static_cast<size_t>(index % 4) + 1) * (size_t{1} << (log - 2))) * unit;
}
static_assert(class_of(1) == 0 && class_of(1024) == 3 && class_of(1025) == 4 && bytes_of_class(4) == 5 * unit);
static_assert(bytes_of_class(class_of(9 * unit)) == 10 * unit && bytes_of_class(class_of(slab_bytes)) == slab_bytes);

void* take(size_t bytes, size_t alignment) {
  if (alignment > unit) bytes = std::max(bytes, slab_bytes / 2 + 1);  // of whole slabs, and so aligned to 1 MiB
  const int index = class_of(bytes);
  const size_t size = bytes_of_class(index);
  const std::scoped_lock lock(heap.mutex);
  Free*& list = heap.free[static_cast<size_t>(index)];
  if (list == nullptr) {
    const bool large = size > slab_bytes / 2;
    const size_t taken = large ? (size + slab_bytes - 1) / slab_bytes * slab_bytes : slab_bytes;
    if (static_cast<size_t>(heap.end - heap.unused) < taken) return nullptr;
    std::byte* slab = heap.unused;
    heap.unused += taken;
    heap.class_of_slab[static_cast<size_t>(slab - heap.begin) / slab_bytes] = static_cast<uint8_t>(index);
    for (size_t at = 0; at + size <= (large ? size : slab_bytes); at += size) list = new (slab + at) Free{list};
  }
  Free* piece = list;
  list = piece->next;
  return piece;
}

bool owns(const void* p) { return p >= heap.begin && p < heap.end; }

void give(void* p) {
  if (!owns(p)) return std::free(p);
  const std::scoped_lock lock(heap.mutex);
  const size_t slab = static_cast<size_t>(static_cast<std::byte*>(p) - heap.begin) / slab_bytes;
  Free*& list = heap.free[heap.class_of_slab[slab]];
  list = new (p) Free{list};
}

void* allocate(size_t bytes, size_t alignment = unit) noexcept {
  if (bytes > max_slabs * slab_bytes) return nullptr;
  if (heap.begin != nullptr) return take(bytes, alignment);
  alignment = std::max(alignment, unit);
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* or_throw(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void allocate_from(std::byte* block, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  const size_t skipped = (slab_bytes - address % slab_bytes) % slab_bytes;
  heap.unused = block + skipped;
  heap.end = block + std::min(bytes, skipped + max_slabs * slab_bytes);
  heap.begin = block + skipped;
}

}  // namespace sluice::test

using sluice::test::allocate;
using sluice::test::give;
using sluice::test::or_throw;

void* operator new(size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new[](size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t to) { return or_throw(allocate(bytes, static_cast<size_t>(to))); }
void* operator new[](size_t bytes, std::align_val_t to) { return or_throw(allocate(bytes, static_cast<size_t>(to))); }
void* operator new(size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(to));
}
void* operator new[](size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(to));
}
void operator delete(void* p) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete(void* p, size_t) noexcept { give(p); }
void operator delete[](void* p, size_t) noexcept { give(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete(void* p, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { give(p); }
