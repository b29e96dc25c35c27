// How a step is carried out in memory: which layers' inputs are kept, what else, in how large tiles. It changes no bit of
// the result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder_layer.h"

namespace sluice {

// Consecutive layers [begin, end) of which only the first one's input is kept by the main forward. The last forward through a layer (the
// main one if the segment is a single layer, else the redo) keeps what `level` says.
struct Segment {
  int64_t begin = 0, end = 0;
  Level level = Level::input;
  bool host = false;  // of a single layer above level input: what it keeps waits for the backward in pinned host memory
  int64_t size() const { return end - begin; }
};

enum class HeadSchedule : uint8_t { by_rows, by_blocks };

struct Schedule {
  int64_t tile = 1024;  // tokens at once inside a layer; a multiple of row_chunk
  std::vector<Segment> segments;
  HeadSchedule head = HeadSchedule::by_rows;
  int64_t head_rows = 128;
  // Inputs of segments wait for the backward in pinned host memory; three buffers take turns on the device. A segment's `host` needs it.
  bool offload = false;

  // Segments of `segment_size` layers at one level.
  static Schedule uniform(int64_t num_layers, int64_t segment_size, Level level);
  std::string describe()
      const;  // "segments of 1 (4 layers keep everything, 8 attention, …), tile 1024, head by rows of 128"
};

}  // namespace sluice
