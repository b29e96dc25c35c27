#include "core/json.h"
#include "data/row_sources.h"

namespace sluice {

namespace {

// RFC 4180: a cell may stand in quotes, then separators, line ends and doubled quotes are text. Read by hand: Debian's libcsv trims cells, and
// does not tell a damaged record.
class Table : public RowSource {
 public:
  Table(ByteScanner bytes, char separator) : bytes_(std::move(bytes)), separator_(separator) {}

  bool next(RawRow& row) override {
    if (names_.empty() && !read_header()) return false;
    ++number_;
    do {
      if (at_end()) return false;
      read_record();
    } while (blank_);
    if (cells_.size() != names_.size())
      refuse(fmt::format("it has {} cells, the header has {}; is a separator or a quote missing?", cells_.size(),
                         names_.size()));
    write_object();
    row = {.text = text_, .number = number_};
    return true;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    const std::string where = number_ == 0 ? std::string("header") : fmt::format("row {}", number_);
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", where, what));
  }

  bool at_end() { return bytes_.window().empty(); }

  bool read_header() {
    for (const char mark : std::string_view("\xEF\xBB\xBF")) {
      if (bytes_.window().starts_with(mark)) bytes_.take(1);
    }
    do {
      if (at_end()) return false;
      read_record();
    } while (blank_);
    names_ = std::move(cells_);
    for (size_t i = 0; i < names_.size(); ++i) {
      // pandas writes its index under an empty name.
      if (names_[i].empty()) names_[i] = fmt::format("column {}", i + 1);
      for (size_t k = 0; k < i; ++k) {
        if (names_[k] == names_[i]) refuse(fmt::format("two columns are called \"{}\"; rename one", names_[i]));
      }
    }
    return true;
  }

  enum class State : uint8_t { cell_start, plain, quoted, quote_in_quoted, line_end };

  // A record to cells_; blank_ where the line is empty.
  void read_record() {
    cells_.assign(1, "");
    bytes_of_record_ = 0;
    bool any = false;
    State state = State::cell_start;
    for (std::string_view window = bytes_.window(); !window.empty(); window = bytes_.window()) {
      size_t i = 0;
      for (; i < window.size(); ++i) {
        const char c = window[i];
        if (state == State::line_end && c != '\n') break;  // a carriage return alone ends a record, too
        any = any || (c != '\n' && c != '\r');
        state = step(state, c);
        if (state == State::line_end && c == '\n') {
          bytes_.take(i + 1);
          blank_ = !any;
          return;
        }
      }
      bytes_.take(i);
      if (i < window.size()) break;
    }
    if (state == State::quoted) refuse(fmt::format("the quote that opens cell {} is never closed", cells_.size()));
    blank_ = !any;
  }

  State step(State state, char c) {
    if (++bytes_of_record_ > max_row_bytes)
      refuse(fmt::format("it is longer than {} MiB; is a quote missing?", max_row_bytes >> 20));
    if (state == State::quoted) {
      if (c == '"') return State::quote_in_quoted;
    } else if (c == separator_) {
      cells_.emplace_back();
      return State::cell_start;
    } else if (c == '\n' || c == '\r') {
      return State::line_end;
    } else if (c == '"') {
      if (state == State::cell_start) return State::quoted;
      if (state == State::plain)
        refuse(fmt::format("cell {} has a quote inside and none around it; needed \"…\"\"…\"", cells_.size()));
      state = State::quoted;  // two quotes are one
    } else if (state == State::quote_in_quoted) {
      refuse(fmt::format("cell {} goes on behind its closing quote; needed two quotes for one inside", cells_.size()));
    } else {
      state = State::plain;
    }
    cells_.back() += c;
    return state;
  }

  void write_object() {
    Json object = Json::object();
    for (size_t i = 0; i < names_.size(); ++i) object[names_[i]] = std::move(cells_[i]);
    try {
      text_ = object.dump();
    } catch (const Json::exception&) {
      refuse("it is not UTF-8; save the table as UTF-8");
    }
  }

  ByteScanner bytes_;
  const char separator_;
  std::vector<std::string> names_, cells_;
  std::string text_;
  size_t bytes_of_record_ = 0;
  int64_t number_ = 0;
  bool blank_ = false;
};

}  // namespace

std::unique_ptr<RowSource> table(ByteScanner bytes, char separator) {
  return std::make_unique<Table>(std::move(bytes), separator);
}

}  // namespace sluice
