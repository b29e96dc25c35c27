#include "data/row_sources.h"

namespace sluice {

namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

[[noreturn]] void refuse(int64_t row, const std::string& what) {
  throw Error(ErrorCode::bad_file, fmt::format("row {}: {}", row, what));
}

void append(std::string& row, std::string_view text, int64_t number) {
  if (row.size() + text.size() > max_row_bytes)
    refuse(number, fmt::format("it is longer than {} MiB; is it the right file?", max_row_bytes >> 20));
  row += text;
}

class JsonLines : public RowSource {
 public:
  explicit JsonLines(ByteScanner bytes) : bytes_(std::move(bytes)) {}

  bool next(RawRow& row) override {
    if (bytes_.window().empty()) return false;
    ++number_;
    line_.clear();
    for (std::string_view window = bytes_.window(); !window.empty(); window = bytes_.window()) {
      const size_t end = window.find('\n');
      append(line_, window.substr(0, end), number_);
      bytes_.take(std::min(window.size(), end == std::string_view::npos ? end : end + 1));
      if (end != std::string_view::npos) break;
    }
    row = {.text = line_, .number = number_};
    if (number_ == 1 && row.text.starts_with(byte_order_mark)) row.text.remove_prefix(byte_order_mark.size());
    if (row.text.ends_with('\r')) row.text.remove_suffix(1);
    return true;
  }

 private:
  ByteScanner bytes_;
  std::string line_;
  int64_t number_ = 0;
};

// Finds where an element ends by brackets and strings alone; whether it is JSON shows when it is parsed.
class JsonList : public RowSource {
 public:
  explicit JsonList(ByteScanner bytes) : bytes_(std::move(bytes)) {}

  bool next(RawRow& row) override {
    if (ended_) return false;
    if (number_ == 0) open();
    ++number_;
    const char first = skip_space();
    if (first == ']' && number_ == 1) return close();
    element(first);
    row = {.text = element_, .number = number_};
    const char after = skip_space();
    bytes_.take(1);
    if (after == ']') close_after();
    else if (after != ',') refuse(number_, after == '\0' ? cut_off : "needed , or ] behind it");
    return true;
  }

 private:
  static constexpr const char* cut_off = "the file ends inside the list; it is cut off";

  // The next byte that is no white space; 0 at the end.
  char skip_space() {
    for (std::string_view window = bytes_.window(); !window.empty(); window = bytes_.window()) {
      const size_t at = window.find_first_not_of(" \t\r\n");
      bytes_.take(std::min(at, window.size()));
      if (at != std::string_view::npos) return window[at];
    }
    return '\0';
  }

  void open() {
    for (const char mark : byte_order_mark) {
      if (bytes_.window().starts_with(mark)) bytes_.take(1);
    }
    if (skip_space() != '[') refuse(1, "needed a list: [{…}, …]");
    bytes_.take(1);
  }

  bool close() {
    bytes_.take(1);
    close_after();
    return false;
  }

  void close_after() {
    ended_ = true;
    if (skip_space() != '\0') refuse(number_, "the list ends behind it, and more text follows; needed one list");
  }

  void element(char first) {
    element_.clear();
    if (first == '\0') refuse(number_, cut_off);
    if (first == ',' || first == ']') refuse(number_, "there is nothing between two commas, or behind the last");
    int64_t depth = 0;
    bool in_string = false, escaped = false;
    for (std::string_view window = bytes_.window(); !window.empty(); window = bytes_.window()) {
      size_t end = 0;
      for (; end < window.size(); ++end) {
        const char c = window[end];
        if (escaped) escaped = false;
        else if (in_string) escaped = c == '\\', in_string = c != '"';
        else if (c == '"') in_string = true;
        else if (c == '{' || c == '[') ++depth;
        else if (depth == 0 && (c == ',' || c == ']')) break;
        else if (c == '}' || c == ']') --depth;
      }
      append(element_, window.substr(0, end), number_);
      bytes_.take(end);
      if (end < window.size()) return;
    }
    refuse(number_, cut_off);
  }

  ByteScanner bytes_;
  std::string element_;
  int64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<RowSource> json_lines(ByteScanner bytes) { return std::make_unique<JsonLines>(std::move(bytes)); }
std::unique_ptr<RowSource> json_list(ByteScanner bytes) { return std::make_unique<JsonList>(std::move(bytes)); }

}  // namespace sluice
