// The lines of a JSONL file, for the readers of this folder.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace sluice {

// Throws Error(bad_file) for a folder, a file that cannot be read, and one whose first bytes are of another kind (Parquet, gzip, CSV …), by its kind.
void check_jsonl(const std::string& path);

// Calls use(line, number), number from 1, until it returns false; an Error from it gets file and row in front. CRLF and a byte-order mark
// are taken off. Throws Error(bad_file) as check_jsonl.
template <class Use>
void for_each_line(const std::string& path, const Use& use) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  check_jsonl(path);
  std::ifstream file(path, std::ios::binary);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    std::string_view content = line;
    if (number == 1 && content.starts_with(byte_order_mark)) content.remove_prefix(byte_order_mark.size());
    if (content.ends_with('\r')) content.remove_suffix(1);
    try {
      if (!use(content, number)) return;
    } catch (Error& e) {
      throw e.while_doing(fmt::format("{}: row {}", path, number));
    }
  }
  check(!file.bad(), ErrorCode::bad_file, path + ": reading stopped with an error of the disk");
}

}  // namespace sluice
