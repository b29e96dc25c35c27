// The kinds of row_source.h, for open_rows and their fuzz targets.
#pragma once

#include <memory>

#include "data/row_source.h"
#include "io/byte_stream.h"

namespace sluice {

// CRLF and a byte-order mark are taken off.
std::unique_ptr<RowSource> json_lines(ByteScanner bytes);
// One list of objects: the text of each as it stands.
std::unique_ptr<RowSource> json_list(ByteScanner bytes);
// Cells by RFC 4180, as a JSON object of strings under the header's names.
std::unique_ptr<RowSource> table(ByteScanner bytes, char separator);
// Where the program was built with SLUICE_PARQUET; else Error(bad_file) saying so.
std::unique_ptr<RowSource> parquet_rows(const std::string& path);
bool reads_parquet();

}  // namespace sluice
