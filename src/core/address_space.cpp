#include "core/address_space.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "core/bytes.h"
#include "core/error.h"

namespace sluice {

void check_address_space(int64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  int64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return;
  const int64_t most = static_cast<int64_t>(limit.rlim_cur), left = most - pages * ::sysconf(_SC_PAGESIZE);
  check(left >= bytes, ErrorCode::out_of_memory,
        "the address space of this process is limited to " + format_bytes(limit.rlim_cur) + " (ulimit -v), of which " +
            format_bytes(static_cast<uint64_t>(left > 0 ? left : 0)) + " are left and " +
            format_bytes(static_cast<uint64_t>(bytes)) + " needed; raise the limit");
}

}  // namespace sluice
