// Writing small GGUF files: version 3, float32 tensors, scalar and text metadata. Read back by io/gguf.h and by llama.cpp.
//
//   write_gguf("adapter.gguf", {{"general.type", "adapter"}, {"adapter.lora.alpha", 16.0F}}, {{"blk.0.attn_q.weight.lora_a", {8, 64}, values}});
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sluice {

using GgufScalar = std::variant<std::string, float, uint32_t>;

struct GgufTensorToWrite {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  std::span<const float> values;
};

// Atomically (io/atomic_file.h). Throws Error(bad_file) when the disk is full or cannot be written.
void write_gguf(const std::string& path, const std::vector<std::pair<std::string, GgufScalar>>& metadata,
                const std::vector<GgufTensorToWrite>& tensors);

}  // namespace sluice
