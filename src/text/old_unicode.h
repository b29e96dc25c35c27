// What Hugging Face tokenizers does not know of Unicode: its tables of marks and punctuation for BERT are those of version 8, its
// other marks those of version 9. Later characters have no property there.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

bool unknown_to_unicode_9(uint32_t code);
bool unnamed_in_unicode_8(uint32_t code);  // not a mark or punctuation in version 8

// The characters that unnamed_in_unicode_8() is true of, as items of a class of a pattern.
std::string unnamed_class_items();

}  // namespace sluice
