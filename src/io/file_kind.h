// What a file or a folder is that was given in place of another: by its first bytes and by what lies in it, not by its name.
//
//   if (const auto kind = kind_of_file("train.jsonl")) …        // "a Parquet file", "turn it into …"
//   std::string hint = kind_of_folder("models--org--name");      // "is a folder of the Hugging Face cache; did you mean …/snapshots/1a2b?"
//
// For messages alone: a reader that knows better is never overruled.
#pragma once

#include <optional>
#include <string>

namespace sluice {

struct FileKind {
  std::string name;    // "a Parquet file"
  std::string remedy;  // "turn it into JSON lines: …"; may be empty
};

// Nothing for text that could be JSON lines, for what cannot be read, and for what is not known. Reads at most 4 KiB.
std::optional<FileKind> kind_of_file(const std::string& path);

// What a folder is that holds neither a model nor an adapter itself: a clause that begins with "is", or nothing.
std::string kind_of_folder(const std::string& path);

}  // namespace sluice
