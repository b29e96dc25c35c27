#include "data/columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/row_format.h"

namespace sluice {

namespace {

constexpr std::array<std::string_view, 4> optional = {"system", "input", "history", "tools"};
constexpr std::array<const char*, 6> with_messages = {"messages",   "conversations", "prompt",
                                                      "completion", "chosen",        "rejected"};

bool is_of_messages(const std::string& name) { return name == "role" || name == "content"; }

void rename(Json& object, const std::string& from, const std::string& to) {
  Json renamed = Json::object();
  for (auto& [key, value] : object.items())
    renamed[key == from ? to : key == to ? to + " of the file" : key] = std::move(value);
  object = std::move(renamed);
}

// ShareGPT's names, whose values are read as roles of other tools.
void rename_in_messages(Json& value, const std::string& from, const std::string& name) {
  for (Json& message : value.is_object() ? value = Json::array({value}) : value) {
    if (message.is_object() && message.contains(from)) rename(message, from, name == "role" ? "from" : "value");
  }
}

}  // namespace

void Columns::apply(Json& row) const {
  for (const auto& [name, own] : names) {
    if (own == name || is_of_messages(name)) continue;
    if (row.contains(own)) {
      rename(row, own, name);
    } else if (std::find(optional.begin(), optional.end(), name) == optional.end()) {
      std::string keys;
      for (const auto& item : row.items()) keys += (keys.empty() ? "\"" : ", \"") + item.key() + "\"";
      refuse_row(fmt::format("there is no \"{}\", which columns.{} names; the row has {}", own, name, keys));
    }
  }
  for (const auto& [name, own] : names) {
    if (own == name || !is_of_messages(name)) continue;
    for (const char* key : with_messages) {
      if (row.contains(key) && row[key].is_structured()) rename_in_messages(row[key], own, name);
    }
  }
}

}  // namespace sluice
