// The known name nearest to a mistyped one, for messages: least edit distance (insert, delete, replace, swap of neighbours).
#pragma once

#include <string>
#include <vector>

namespace sluice {

std::string nearest(const std::string& name, const std::vector<std::string>& known);  // known is not empty

}  // namespace sluice
