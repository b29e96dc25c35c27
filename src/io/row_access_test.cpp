#include "io/row_access.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "io/mmap.h"
#include "support/golden.h"

namespace sluice {

TEST_CASE("read_by_row: of a table that lies on disk only the pages of the rows that were read are in memory") {
  const test::TemporaryFolder folder;
  constexpr int64_t rows = 16384, cols = 2048, page = 4096;  // a row is a page, the table 64 MiB
  if (::sysconf(_SC_PAGESIZE) != page) return;
  test::write_whole_file(folder / "table", "");
  REQUIRE(::truncate((folder / "table").c_str(), rows * page) == 0);  // no page of it has been read or written
  const MappedFile file(folder / "table");
  const Weight table{.format = WeightFormat::bf16, .rows = rows, .cols = cols, .data = file.bytes().data()};
  read_by_row(table);
  int64_t sum = 0;
  for (int64_t row = 100; row < rows; row += 256) sum += static_cast<int64_t>(table.data[row * page + 7]);
  CHECK(sum == 0);
  std::vector<unsigned char> resident(rows);
  REQUIRE(::mincore(const_cast<std::byte*>(table.data), rows * page, resident.data()) == 0);
  const int pages =
      std::accumulate(resident.begin(), resident.end(), 0, [](int n, unsigned char p) { return n + (p & 1); });
  CHECK(pages == 64);
}

TEST_CASE("read_by_row: an affine weight and one without data are accepted") {
  const std::vector<std::byte> bytes(1 << 16);
  read_by_row({.format = WeightFormat::affine,
               .rows = 64,
               .cols = 128,
               .data = bytes.data(),
               .scales = bytes.data() + 8192,
               .biases = bytes.data() + 16384,
               .bits = 4,
               .group_size = 64});
  read_by_row({.format = WeightFormat::affine, .rows = 64, .cols = 128, .bits = 4, .group_size = 64});
}

}  // namespace sluice
