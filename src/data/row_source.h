// The rows of a data file one after another, whatever its kind, with memory for one row and a buffer.
//
//   const auto rows = open_rows("data/train.json.gz");
//   for (RawRow row; rows->next(row);) …                        // row.text is one JSON object, row.number its number
//
// Kinds: JSON lines; one JSON list of objects; CSV and TSV (RFC 4180) with a header, whose cells become strings. Each may be packed by gzip or
// Zstandard. Parquet, in a build that reads it (data/row_sources.h). A kind is told by its first bytes; a table also by the name's ending, .csv or .tsv.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"

namespace sluice {

struct RawRow {
  std::string_view text;  // valid until the next call; JSON lines may be blank
  // From 1, as people count: the line of JSON lines, the element of a list, the record of a table after its header.
  int64_t number = 0;
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  // False at the end. Throws Error(bad_file) with the row, without the file, for what cannot be divided into rows.
  virtual bool next(RawRow& row) = 0;
};

// Throws Error(bad_file) for a folder, a file that cannot be read, and one of another kind, by its kind.
std::unique_ptr<RowSource> open_rows(const std::string& path);

// Longer ones are refused: they must fit into memory, and no conversation is so long.
inline constexpr size_t max_row_bytes = size_t{256} << 20;

// The file of a folder that holds one part of a data set: train, valid or test (also called validation), with any ending that open_rows reads.
// Empty: there is none. Throws Error(bad_file) when there are several.
std::string file_of_part(const std::string& folder, const std::string& part);

// Calls use(text, number) for every row until it returns false; an Error from it gets file and row in front.
template <class Use>
void for_each_row(const std::string& path, const Use& use) {
  const std::unique_ptr<RowSource> rows = open_rows(path);
  RawRow row;
  const auto next = [&] {
    try {
      return rows->next(row);
    } catch (Error& e) {
      throw std::string_view(e.what()).starts_with(path) ? e : e.while_doing(path);
    }
  };
  while (next()) {
    try {
      if (!use(row.text, row.number)) return;
    } catch (Error& e) {
      throw e.while_doing(fmt::format("{}: row {}", path, row.number));
    }
  }
}

}  // namespace sluice
