// JSON values; nlohmann's, with keys in file order.
#pragma once

#include <nlohmann/json.hpp>

namespace sluice {

using Json = nlohmann::ordered_json;

}  // namespace sluice
