#pragma once

namespace sluice {

constexpr const char* version = "0.1.0";  // as in CMakeLists.txt; core_test compares

}  // namespace sluice
