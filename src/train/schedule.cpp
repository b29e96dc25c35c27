#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

Schedule Schedule::uniform(int64_t num_layers, int64_t segment_size, Level level) {
  Schedule schedule;
  for (int64_t begin = 0; begin < num_layers; begin += segment_size) {
    schedule.segments.push_back({.begin = begin, .end = std::min(begin + segment_size, num_layers), .level = level});
  }
  return schedule;
}

std::string Schedule::describe() const {
  int64_t longest = 0;
  struct Count {
    int64_t layers = 0, host = 0;
    std::string text(const char* what) const {
      return fmt::format("{} {}{}", layers, what,
                         host > 0 ? fmt::format(" ({} through host memory)", host) : std::string());
    }
  } attention, all;
  for (const Segment& s : segments) {
    longest = std::max(longest, s.size());
    if (s.size() > 1 || s.level == Level::input) continue;
    Count& count = s.level == Level::all ? all : attention;
    ++count.layers;
    count.host += s.host ? 1 : 0;
  }
  return fmt::format("segments of {} ({}, {}, the rest inputs), tile {}, head by {}{}", longest,
                     all.text("layers keep everything"), attention.text("attention"), tile,
                     head == HeadSchedule::by_rows ? fmt::format("rows of {}", head_rows) : std::string("blocks"),
                     offload ? ", inputs in host memory" : "");
}

}  // namespace sluice
