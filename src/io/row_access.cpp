#include "io/row_access.h"

#include <sys/mman.h>
#include <unistd.h>

namespace sluice {

namespace {

// Whole pages inside the range: those at its ends belong to its neighbours too.
void advise_random(const std::byte* data, int64_t bytes) {
  if (data == nullptr) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + page - 1) / page * page,
                  end = (address + static_cast<uintptr_t>(bytes)) / page * page;
  if (begin < end) static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM));
}

}  // namespace

void read_by_row(const Weight& weight) {
  advise_random(weight.data, weight.rows * weight.row_bytes());
  if (weight.format != WeightFormat::affine) return;
  const int64_t parameters = weight.rows * (weight.cols / weight.group_size) * size_of(weight.scale_dtype);
  advise_random(weight.scales, parameters);
  advise_random(weight.biases, parameters);
}

}  // namespace sluice
