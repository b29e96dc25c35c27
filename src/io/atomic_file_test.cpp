#include "io/atomic_file.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <thread>

#include "io/safetensors.h"
#include "support/golden.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

// Runs `body` in a child process and returns its exit status; 99 stands for an exception.
template <class F>
int in_child(F body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.code() == ErrorCode::bad_file ? e.what() : "another code";
  }
  return "";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("atomic_write_file: replaces the file whole and leaves nothing else behind") {
  const test::TemporaryFolder folder;
  atomic_write_file(folder / "a.json", "first, and longer");
  atomic_write_file(folder / "a.json", "second");
  CHECK(test::read_whole_file(folder / "a.json") == "second");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a.json"});
  atomic_write_file(folder / "empty", std::string_view{});
  CHECK(fs::file_size(folder / "empty") == 0);
}

TEST_CASE("AtomicFile: without a commit the old file stays, whatever was written") {
  const test::TemporaryFolder folder;
  atomic_write_file(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
  }
  CHECK(test::read_whole_file(folder / "a") == "old");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a"});
}

TEST_CASE("AtomicFile: what a killed writer left is overwritten, and its bytes do not show") {
  const test::TemporaryFolder folder;
  atomic_write_file(folder / "a", "old");
  const int status = in_child([&]() -> int {
    AtomicFile file(folder / "a");
    file.write(std::string(100000, 'x'));
    return ::raise(SIGKILL);
  });
  CHECK(status == 128 + SIGKILL);
  CHECK(test::read_whole_file(folder / "a") == "old");
  CHECK(fs::exists(folder / "a.tmp"));
  atomic_write_file(folder / "a", "new");
  CHECK(test::read_whole_file(folder / "a") == "new");
  CHECK_FALSE(fs::exists(folder / "a.tmp"));
}

TEST_CASE("atomic_write_file: writers of one path take turns, readers see a whole file") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a";
  atomic_write_file(path, std::string(5000, '0'));
  std::vector<std::thread> writers;
  for (char letter : {'1', '2', '3'}) {
    writers.emplace_back([&path, letter] {
      for (int i = 0; i < 20; ++i) atomic_write_file(path, std::string(5000, letter));
    });
  }
  for (int i = 0; i < 50; ++i) {
    const std::string content = test::read_whole_file(path);
    CHECK(content == std::string(5000, content.at(0)));
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a"});
}

TEST_CASE("atomic_write_file: a folder that is missing or not writable is named") {
  const test::TemporaryFolder folder;
  CHECK(contains(message_of([&] { atomic_write_file(folder / "none/a", "x"); }), "No such file or directory"));
  fs::create_directory(folder / "a");
  CHECK(contains(message_of([&] { atomic_write_file(folder / "a", "x"); }), "Is a directory"));
  CHECK_FALSE(fs::exists(folder / "a.tmp"));
}

TEST_CASE(
    "FieldC4_write_safetensors: with more to write than the disk has, names needed and free bytes and keeps the old "
    "file") {
  const test::TemporaryFolder folder;
  atomic_write_file(folder / "a", "old");
  const uint64_t needed = free_disk_bytes(folder / "a") + (uint64_t{1} << 30);
  const std::string message = message_of([&] { AtomicFile file(folder / "a", needed); });
  CHECK(contains(message, "the disk is full"));
  CHECK(contains(message, std::to_string(needed).c_str()));
  CHECK(contains(message, "free"));
  CHECK(test::read_whole_file(folder / "a") == "old");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a"});
}

TEST_CASE("FieldC4_write_safetensors: on a full 5 MB disk the last checkpoint stays, and a smaller one still fits") {
  const test::TemporaryFolder folder;
  constexpr int no_tmpfs = 77;
  const int status = in_child([&]() -> int {
    const bool mounted = (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
                         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=5m") == 0;
    if (!mounted) return no_tmpfs;
    const std::string path = folder / "adapter_model.safetensors";
    const std::vector<std::byte> small(2 << 20, std::byte{1}), large(4 << 20, std::byte{2});
    auto write = [&](const std::vector<std::byte>& data) {
      write_safetensors(path, {{"a", "U8", {static_cast<int64_t>(data.size())}, data}});
    };
    write(small);
    const std::string foreseen = message_of([&] { write(large); });
    if (!contains(foreseen, "the disk is full: needed 4.0 MiB") || !contains(foreseen, "free 3.0 MiB")) return 1;
    // Not foreseen: the space goes while we write, so write() itself comes back short.
    const std::string found = message_of([&] {
      AtomicFile file(path);
      file.write(large);
      file.commit();
    });
    if (!contains(found, "the disk is full: needed 4.0 MiB (4194304 bytes), free 3.0 MiB")) return 2;
    if (fs::exists(path + ".tmp")) return 3;
    if (SafetensorsFile(path).tensors().at(0).data.size() != small.size()) return 4;
    write(small);
    return 0;
  });
  if (status == no_tmpfs) MESSAGE("no right to mount a tmpfs here: the full disk was not tried");
  else CHECK(status == 0);
}

TEST_CASE("AtomicFile: a short write that ends in an error leaves the old file and names the reason") {
  const test::TemporaryFolder folder;
  atomic_write_file(folder / "a", "old");
  const int status = in_child([&]() -> int {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    return contains(message_of([&] { atomic_write_file(folder / "a", std::string(5000, 'x')); }), "File too large") ? 0
                                                                                                                    : 2;
  });
  CHECK(status == 0);
  CHECK(test::read_whole_file(folder / "a") == "old");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a"});
}

}  // namespace sluice
