// The table of filters, filled by two files.
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace sluice::jinja {

using Filter = Value (*)(Interpreter&, Arguments&);
using FilterTable = std::unordered_map<std::string_view, Filter>;

void add_value_filters(FilterTable& table);
void add_sequence_filters(FilterTable& table);

// Markup's escape: & < > ' ".
MarkedText escaped(const MarkedText& text);

}  // namespace sluice::jinja
