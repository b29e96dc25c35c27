// The lines of a JSONL file, for the readers of this folder.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"

namespace sluice {

// Calls use(line, number), number from 1, until it returns false; an Error from it gets file and row in front. CRLF and a byte-order mark
// are taken off. Throws Error(bad_file) when the file cannot be read.
template <class Use>
void for_each_line(const std::string& path, const Use& use) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  check(!std::filesystem::is_directory(path), ErrorCode::bad_file, path + " is a folder, needed a .jsonl file");
  std::ifstream file(path, std::ios::binary);
  check(file.good(), ErrorCode::bad_file, path + " cannot be read; give the path of a .jsonl file");
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
