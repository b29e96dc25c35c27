// Runs of characters of one script, as a pattern.
#pragma once

#include <string>

namespace sluice {

// Matches the longest runs of one script, with the spaces and unassigned characters behind them (Hugging Face tokenizers'
// UnicodeScripts, whose tables are of Unicode 9: Hiragana, Katakana and U+30FC count as Han; to it later characters are unassigned). What lies before the first run matches nothing.
std::string script_runs_pattern();

}  // namespace sluice
