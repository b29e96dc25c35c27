#include "core/error.h"

namespace sluice {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_config: return "bad config";
    case ErrorCode::bad_file: return "bad file";
    case ErrorCode::out_of_memory: return "out of memory";
    case ErrorCode::device: return "device";
    case ErrorCode::dist: return "dist";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::bug: return "bug";
  }
  return "bug";
}

void assertion_failed(const char* expression, const char* file, int line) {
  throw Error(ErrorCode::bug, std::string(file) + ":" + std::to_string(line) + ": assertion failed: " + expression +
                                  "; this is a bug in sluice, please report it");
}

}  // namespace sluice
