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
  int64_t longest = 0, attention = 0, all = 0;
  for (const Segment& s : segments) {
    longest = std::max(longest, s.size());
    if (s.size() == 1 && s.level == Level::attention) ++attention;
    if (s.size() == 1 && s.level == Level::all) ++all;
  }
  return fmt::format("segments of {} ({} layers keep everything, {} attention, the rest inputs), tile {}, head by {}{}",
                     longest, all, attention, tile,
                     head == HeadSchedule::by_rows ? fmt::format("rows of {}", head_rows) : std::string("blocks"),
                     offload ? ", inputs in host memory" : "");
}

}  // namespace sluice
