// What a file or a folder is that was given in place of another: by its first bytes and by what lies in it, not by its name.
//
//   if (const auto kind = kind_of_file("train.jsonl")) …        // "a Parquet file", "turn it into …"
//   std::string hint = kind_of_folder("models--org--name");      // "is a folder of the Hugging Face cache; did you mean …/snapshots/1a2b?"
//
// For messages alone: a reader that knows better is never overruled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct FileKind {
  std::string name;    // "a Parquet file"
  std::string remedy;  // "turn it into JSON lines: …"; may be empty
};

// Nothing for text that could hold rows (data/row_source.h), for what cannot be read, and for what is not known. Reads at most 4 KiB.
std::optional<FileKind> kind_of_file(const std::string& path);
// The same of a file's first bytes; what is packed counts as a kind here.
std::optional<FileKind> kind_of_bytes(std::string_view bytes);

// How text is divided into rows, by its beginning: as lines of JSON where nothing else shows. A list need not begin with an object where the file's
// name says that it is JSON.
enum class RowShape : uint8_t { lines, list, commas, tabs };
RowShape shape_of_rows(std::string_view text, bool called_json = false);

// What a folder is that holds neither a model nor an adapter itself: a clause that begins with "is", or nothing.
std::string kind_of_folder(const std::string& path);

}  // namespace sluice
