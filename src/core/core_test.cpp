#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#include "core/arena.h"
#include "core/control_groups.h"
#include "core/device.h"
#include "core/rng.h"
#include "core/spans.h"
#include "core/system_memory.h"
#include "core/thread_pool.h"
#include "support/golden.h"

namespace sluice {

TEST_CASE("arena: a counting run and a real run of the same calls peak at the same byte") {
  const auto calls = [](Arena& arena) {
    ArenaScope outer(arena);
    outer.tensor(DType::bf16, {3, 5});
    {
      ArenaScope inner(arena);
      inner.tensor(DType::f32, {1000});
    }
    outer.array<double>(7);
  };
  Arena counting = Arena::counting(Device::cpu());
  calls(counting);
  Arena real = Arena::allocate(Device::cpu(), counting.peak());
  calls(real);
  CHECK(real.peak() == counting.peak());
  CHECK(real.used() == 0);
}

TEST_CASE("arena: a full arena throws out_of_memory and stays usable") {
  Arena arena = Arena::allocate(Device::cpu(), 1024);
  CHECK_THROWS_AS(arena.bytes(2000), Error);
  CHECK_NOTHROW(arena.bytes(1024));
  Arena odd = Arena::allocate(Device::cpu(), 1276);
  CHECK_NOTHROW(odd.bytes(1276));
}

TEST_CASE("arena: a part hands out its bytes again and again, no others, and counts where the whole counts") {
  Arena whole = Arena::allocate(Device::cpu(), 4096);
  Arena part = Arena::part_of(whole, 1024);
  std::byte* after = whole.bytes(256);
  std::byte* first = part.bytes(512);
  part.release(0);
  CHECK(part.bytes(1024) == first);
  CHECK(after == first + 1024);
  CHECK_THROWS_AS(part.bytes(1), Error);
  CHECK(whole.used() == 1280);
  Arena counting = Arena::counting(Device::cpu());
  Arena counted = Arena::part_of(counting, 1024);
  CHECK(counted.is_counting());
  CHECK(counting.peak() == 1024);
}

TEST_CASE("system memory: what is available is bounded by the machine and by each control group") {
  const test::TemporaryFolder folder;
  const std::filesystem::path root = folder.path();
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  CHECK(available_memory(root) == 0);
  write("proc/meminfo", "MemTotal: 900000 kB\nMemAvailable:   500000 kB\n");
  CHECK(available_memory(root) == 512000000);
  write("proc/self/cgroup", "1:name=x:/\n0::/jobs/mine\n");
  write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/mine/memory.current", "1000\n");
  CHECK(available_memory(root) == 512000000);
  write("sys/fs/cgroup/jobs/memory.max", "300000000\n");
  write("sys/fs/cgroup/jobs/memory.current", "200000000\n");
  CHECK(available_memory(root) == 100000000);
  write("sys/fs/cgroup/jobs/memory.stat", "anon 7\ninactive_file 40000000\nactive_file 10000000\n");
  CHECK(available_memory(root) == 150000000);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "90000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "80000000\n");
  CHECK(available_memory(root) == 10000000);
  write("proc/self/cgroup", "9:cpu:/jobs/mine\n4:memory,hugetlb://slurm/job\n0::/../../jobs/mine\n");
  write("sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "7000000\n");
  write("sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "1000000\n");
  CHECK(available_memory(root) == 6000000);
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "95000000\n");
  CHECK(available_memory(root) == 0);
  std::filesystem::remove(root / "proc/meminfo");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "85000000\n");
  CHECK(available_memory(root) == 5000000);
}

TEST_CASE("control groups: the cores granted are those of the tightest group, in both versions, nested and whole") {
  const test::TemporaryFolder folder;
  const std::filesystem::path root = folder.path();
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  CHECK_FALSE(quota_of_cores(root));
  write("proc/self/cgroup", "0::/jobs/mine\n");
  write("sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n");
  CHECK_FALSE(quota_of_cores(root));
  write("sys/fs/cgroup/jobs/cpu.max", "350000 100000\n");  // three and a half
  CHECK(quota_of_cores(root) == 4);
  write("sys/fs/cgroup/jobs/mine/cpu.max", "50000 100000\n");
  CHECK(quota_of_cores(root) == 1);
  write("sys/fs/cgroup/jobs/mine/cpu.max", "800000 100000\n");
  CHECK(quota_of_cores(root) == 4);
  // A container that sees its own group at the top.
  write("proc/self/cgroup", "0::/elsewhere/in/the/host\n");
  CHECK_FALSE(quota_of_cores(root));
  write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  CHECK(quota_of_cores(root) == 2);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  // Version 1.
  write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/slurm/job\n1:name=systemd:/\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/job/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(quota_of_cores(root));
  write("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "600000\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n");
  CHECK(quota_of_cores(root) == 6);
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  CHECK(quota_of_cores(root) == 5);
}

TEST_CASE("spans: most_lines is the largest count over all blocks of consecutive tokens") {
  const Spans spans({{-1, 9}, {0, 1}, {0, 2}, {1, 1}, {1, 3}, {-1, 4}, {-1, 1}, {6, 7}});
  for (int64_t rows : {1, 2, 3, 5, 8, 40}) {
    int64_t most = 0;
    for (int64_t begin = 0; begin < spans.num_tokens(); ++begin) {
      int64_t lines = 0;
      for (int64_t s = 0; s < spans.size(); ++s) {
        if (spans[s].begin < begin + rows && spans[s].end() > begin)
          lines += static_cast<int64_t>(spans.ancestors(s).size());
      }
      most = std::max(most, lines);
    }
    CHECK(spans.most_lines(rows) == most);
  }
  CHECK(Spans::one(1000).most_lines(64) == 1);
}

TEST_CASE("philox: the known answers of Random123") {
  // kat_vectors of Random123 1.14: philox4x32 10 rounds
  CHECK(philox(0, {0, 0, 0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~0ULL, {~0U, ~0U, ~0U, ~0U}) == std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("bf16: rounds to nearest even and keeps NaN and infinity") {
  CHECK(static_cast<float>(bf16(1.0F + 0x1p-8F)) == 1.0F);
  CHECK(static_cast<float>(bf16(1.0F + 0x3p-8F)) == 1.0F + 0x4p-8F);
  CHECK(std::isnan(static_cast<float>(bf16(NAN))));
  CHECK(std::isinf(static_cast<float>(bf16(INFINITY))));
}

TEST_CASE("f16: every kind of value widens exactly") {
  CHECK(f16_to_float(0x3c00) == 1.0F);
  CHECK(f16_to_float(0xc000) == -2.0F);
  CHECK(f16_to_float(0x0001) == 0x1p-24F);
  CHECK(f16_to_float(0x7bff) == 65504.0F);
  CHECK(std::isinf(f16_to_float(0x7c00)));
}

TEST_CASE("thread_pool: each item runs once and the first exception reaches the caller") {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> hits(1000);
    for (int round = 0; round < 20; ++round)
      pool.parallel_for(1000, [&](int64_t i, int) { ++hits[static_cast<size_t>(i)]; });
    for (auto& hit : hits) CHECK(hit == 20);
    CHECK_THROWS_AS(pool.parallel_for(100,
                                      [](int64_t i, int) {
                                        if (i == 37) throw Error(ErrorCode::device, "x");
                                      }),
                    Error);
    CHECK_NOTHROW(pool.parallel_for(3, [](int64_t, int) {}));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose shadow memory is no address space of ours
TEST_CASE(
    "thread_pool: threads that cannot be created end in one line that says how many there can be, not in a hang") {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a hang ends here, with another status
    const rlim_t room = 1 << 28;
    const rlimit limit{room, room};
    int status = 1;
    if (setrlimit(RLIMIT_AS, &limit) == 0) {
      try {
        ThreadPool pool(1000);
      } catch (const Error& e) {
        const std::string what = e.what();
        status = what.find("of 1000 threads") != std::string::npos && what.find("--threads") != std::string::npos &&
                         what.find('\n') == std::string::npos
                     ? 0
                     : 2;
      }
    }
    _exit(status);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("thread_pool: loops of several callers take turns, each whole") {
  ThreadPool pool(3);
  std::vector<int64_t> sums(4);
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 200; ++round) {
        std::vector<int64_t> squares(50);
        pool.parallel_for(50, [&](int64_t i, int) { squares[static_cast<size_t>(i)] = i * i; });
        for (int64_t s : squares) sums[caller] += s;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(sums == std::vector<int64_t>(4, 200 * 40425));
}

TEST_CASE("spans: siblings start where their parent ends, and pairs are counted as seen") {
  const Spans spans({{-1, 4}, {0, 2}, {0, 3}});
  CHECK(spans.num_tokens() == 9);
  CHECK(spans.position(4) == 4);
  CHECK(spans.position(6) == 4);
  CHECK(spans.ancestors(2) == std::vector<int64_t>{0, 2});
  CHECK(spans.visible_pairs() == 10 + (5 + 6) + (5 + 6 + 7));
  CHECK(spans.visible_pairs(2) == 1 + 2 * 8);
  CHECK_THROWS_AS(Spans({{0, 4}}), Error);
}

TEST_CASE("device: cpu, cuda and cuda:n are names of devices, all else is refused by name") {
  CHECK(parse_device("cpu") == Device::cpu());
  CHECK(parse_device("cuda") == Device::cuda(0));
  CHECK(parse_device("cuda:3") == Device::cuda(3));
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:123", "CUDA"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(parse_device(name),
                         ("device is '" + std::string(name) + "'; give cpu, cuda or cuda:1").c_str(), Error);
  }
}

}  // namespace sluice
