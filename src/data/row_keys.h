// What the keys of a row and of its messages mean beside those of its format: how much is learned, what a template is given, what would be lost.
//
//   weight_of(message, "messages[1]").value_or(1)             // {"role": "assistant", "content": "…", "train": false}: 0
//   unread_keys(row, "", {"messages"});                       // {"messages": […], "system": "Be brief."} is refused, "id" comes back
//
// A key that says what is learned is honoured or refused, and so is one whose text a model would have to see. What is left is a note
// ("id", "source"): not read, and counted by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace sluice {

// null, "", [] and {}: the same as no key.
bool is_empty_value(const Json& value);

// A value for messages, at most 60 characters of it.
std::string shortened(const Json& value);

// The weight that an object gives to what is learned of it; nothing where it does not say. weight, loss_weight and sample_weight take a number
// from 0 to 1,000,000; train, training, trainable, loss and loss_mask take true, false, 1 or 0. Throws Error(bad_file) for another value, for
// keys that contradict each other, and for a key whose name says that it is one of these and whose meaning is not known (masked, train_detail).
std::optional<double> weight_of(const Json& object, const std::string& where);

// Keys of the object that are neither `read` nor say what is learned, in order. Throws Error(bad_file) for one that carries content which the model
// would not see: images, function_call, history …, unless it is empty or a text that stands in one of the texts `spoken` anyway.
std::vector<std::string> unread_keys(const Json& object, const std::string& where,
                                     const std::vector<std::string_view>& read,
                                     const std::vector<std::string>& spoken = {});

}  // namespace sluice
