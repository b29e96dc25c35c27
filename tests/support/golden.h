// Golden data, and folders for tests to write in.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "support/oracle.h"
#include "support/source_dir.h"

namespace sluice::test {

inline std::filesystem::path golden_dir() { return source_dir() / "tests" / "golden"; }

// A folder that goes when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write_whole_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream stream(path, std::ios::binary);
  stream << content;
  REQUIRE(stream.good());
}

// The message of the Error(bad_file) that `call` throws; empty when it throws none.
template <class F>
std::string bad_file_message(F call) {
  try {
    call();
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::bad_file);
    return e.what();
  }
  return "";
}

}  // namespace sluice::test
