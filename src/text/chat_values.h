// A conversation as the values that a template's program sees, each text with the message that it came from.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "text/jinja/value.h"

namespace sluice {

// The shape that the arguments of tool calls are given in: as the row has them, or all as objects, or all as JSON text.
enum class CallShape : uint8_t { as_given, objects, text };

// JSON as Python's json module reads it. Throws Error(bad_config) for whole numbers beyond 64 bits and for values nested too deeply.
jinja::Value to_value(const Json& json, jinja::Origin origin = {});

// As transformers prepares messages: without keys that are null, reasoning under each of its names. `calls` is set where there are
// arguments of tool calls. Throws Error(bad_config) for what is no list of messages, for images, audio and video, and for arguments that
// are no JSON.
jinja::Value message_values(const Json& messages, CallShape shape, bool& calls);

}  // namespace sluice
