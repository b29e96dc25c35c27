#include "core/cuda_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"

namespace sluice {

void* cuda_symbol(const char* name) {
  static void* library = dlopen("libsluice_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorCode::device, std::string("the CUDA backend cannot be loaded (") + (reason ? reason : "unknown") +
                                       "); build with -DSLUICE_CUDA=ON, or use device: cpu");
  }
  void* symbol = dlsym(library, (std::string("sluice_cuda_") + name).c_str());
  check(symbol != nullptr, ErrorCode::device,
        std::string("the CUDA backend has no ") + name + "; it is older than this program, rebuild both");
  return symbol;
}

namespace {

bool is_set(const char* variable, const char* to = "1") {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string(value) == to;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds and calls of each op, told at the end.
class Profile {
 public:
  void add(const std::string& op, double seconds) {
    const std::lock_guard lock(mutex_);
    Entry& e = ops_[op];
    e.seconds += seconds;
    ++e.calls;
  }
  ~Profile() {
    std::vector<std::pair<double, std::string>> order;
    double total = 0;
    for (const auto& [op, e] : ops_) order.emplace_back(e.seconds, op), total += e.seconds;
    std::sort(order.rbegin(), order.rend());
    for (const auto& [seconds, op] : order)
      std::fprintf(stderr, "%-44s %8ld calls %10.4f s %6.1f %%\n", op.c_str(), ops_[op].calls, seconds,
                   100 * seconds / total);
  }

 private:
  struct Entry {
    double seconds = 0;
    long calls = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Entry> ops_;
};

Profile* profile() {
  static const bool wanted = is_set("SLUICE_CUDA_PROFILE");
  if (!wanted) return nullptr;
  static Profile one;
  return &one;
}

bool synchronous() {
  static const bool wanted = is_set("SLUICE_CUDA_SYNC");
  return wanted;
}

}  // namespace

CudaOp::CudaOp(const Context& ctx, const char* name) : ctx_(ctx), name_(name) {
  if (profile() == nullptr || ctx.counting()) return;
  synchronize(ctx.device);
  begin_ = now();
}

bool CudaOp::one_by_one() {
  static const bool wanted = is_set("SLUICE_CUDA_GRAPH", "0");
  return wanted || profile() != nullptr;
}

void CudaOp::done() {
  if (ctx_.counting() || capturing || (profile() == nullptr && !synchronous())) return;
  try {
    synchronize(ctx_.device);
  } catch (Error& e) {
    throw e.while_doing(name_);
  }
  if (profile() != nullptr) profile()->add(name_, now() - begin_);
}

}  // namespace sluice
