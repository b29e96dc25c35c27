// One exception type for everything that ends an operation.
//
//   throw Error(ErrorCode::bad_file, "model.gguf: tensor data ends past the file; download it again");
//   check(rank > 0, ErrorCode::bad_config, "rank is 0; give lora_parameters.rank at least 1");
//   SLUICE_ASSERT(x.shape == y.shape);   // our own mistakes only
//
// A code exists only where a caller acts differently on it. Values are returned for what a caller expects.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {

enum class ErrorCode { bad_config, bad_file, out_of_memory, device, dist, cancelled, bug };

std::string_view to_string(ErrorCode code);

class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

  // Adds context on the way up: "loading base.safetensors: " + message.
  Error& while_doing(std::string_view what) {
    message_ = std::string(what) + ": " + message_;
    return *this;
  }

 private:
  ErrorCode code_;
  std::string message_;
};

// Throws Error(code, message) unless `ok`. For conditions that a user can cause. The message is built even
// when `ok`, so inner loops test first.
inline void check(bool ok, ErrorCode code, std::string message) {
  if (!ok) throw Error(code, std::move(message));
}

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace sluice

// Our own mistakes: always compiled in, throws Error(bug); never reached by what a user gives.
#define SLUICE_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::sluice::assertion_failed(#expression, __FILE__, __LINE__))
