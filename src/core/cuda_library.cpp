#include "core/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "core/device.h"

namespace sluice {

void* cuda_symbol(const char* name) {
  static void* library = dlopen("libsluice_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorCode::device, std::string("the CUDA backend cannot be loaded (") + (reason ? reason : "unknown") +
                                       "); build with the preset cuda, or use device: cpu");
  }
  void* symbol = dlsym(library, (std::string("sluice_cuda_") + name).c_str());
  check(symbol != nullptr, ErrorCode::device,
        std::string("the CUDA backend has no ") + name + "; it is older than this program, rebuild both");
  return symbol;
}

void after_cuda_op(const Context& ctx, const char* op) {
  static const bool synchronous = [] {
    const char* value = std::getenv("SLUICE_CUDA_SYNC");
    return value != nullptr && std::string(value) == "1";
  }();
  if (!synchronous || ctx.counting()) return;
  try {
    synchronize(ctx.device);
  } catch (Error& e) {
    throw e.while_doing(op);
  }
}

}  // namespace sluice
