// Any bytes as a file of rows, read as lines, as a list and as tables, in pieces of any size: rows or an Error, and the same ones however the bytes arrive.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "data/row_sources.h"

namespace {

using namespace sluice;

class Pieces : public ByteStream {
 public:
  Pieces(std::string_view bytes, size_t piece) : bytes_(bytes), piece_(piece) {}
  size_t read(char* to, size_t size) override {
    const size_t count = std::min({size, piece_, bytes_.size()});
    std::copy_n(bytes_.begin(), count, to);
    bytes_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view bytes_;
  size_t piece_;
};

std::vector<std::string> rows_of(RowSource& source, bool objects) {
  std::vector<std::string> rows;
  try {
    for (RawRow row; source.next(row);) {
      if (row.number != static_cast<int64_t>(rows.size()) + 1) std::abort();
      if (objects && !Json::parse(row.text).is_object()) std::abort();
      rows.emplace_back(row.text);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::bug) std::abort();
    rows.emplace_back(error.what());
  }
  return rows;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto scan = [&](size_t piece, size_t buffer) {
    return ByteScanner(std::make_unique<Pieces>(bytes, piece), buffer);
  };
  const auto same = [&](const auto& open, bool objects) {
    const auto whole = open(scan(SIZE_MAX, 1 << 16)), parts = open(scan(3, 7));
    if (rows_of(*whole, objects) != rows_of(*parts, objects)) std::abort();
  };
  same([](ByteScanner b) { return json_lines(std::move(b)); }, false);
  same([](ByteScanner b) { return json_list(std::move(b)); }, false);
  for (char separator : {',', '\t'}) same([&](ByteScanner b) { return table(std::move(b), separator); }, true);
  return 0;
}
