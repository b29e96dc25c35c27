#include "io/weight_source.h"

#include <fmt/format.h>

#include <cstring>

#include "io/affine.h"
#include "io/file_error.h"
#include "io/gguf.h"

namespace sluice {
namespace {

constexpr std::string_view weight_suffix = ".weight";

std::string_view module_of(std::string_view name) { return name.substr(0, name.size() - weight_suffix.size()); }

std::optional<WeightFormat> format_of(std::string_view dtype) {
  constexpr WeightFormat all[] = {WeightFormat::f32,  WeightFormat::f16,  WeightFormat::bf16, WeightFormat::q4_0,
                                  WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1, WeightFormat::q8_0,
                                  WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k};
  for (WeightFormat format : all) {
    const std::string_view name = to_string(format);  // the same in lower case
    if (name.size() == dtype.size() && std::equal(name.begin(), name.end(), dtype.begin(), [](char a, char b) {
          return a == std::tolower(static_cast<unsigned char>(b));
        })) {
      return format;
    }
  }
  return std::nullopt;
}

int64_t cols_of(const StoredTensor& t) { return t.shape.empty() ? 1 : t.shape.back(); }
int64_t rows_of(const StoredTensor& t) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < t.shape.size(); ++i) rows *= t.shape[i];
  return rows;
}

std::string shape_text(const StoredTensor& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); }

template <class Stored, class Convert>
void read_values(std::span<const std::byte> data, std::vector<float>& values, Convert convert) {
  const std::byte* p = data.data();
  for (float& value : values) {
    Stored stored;
    std::memcpy(&stored, p, sizeof(stored));
    value = static_cast<float>(convert(stored));
    p += sizeof(stored);
  }
}

}  // namespace

std::string_view to_string(SourceKind kind) {
  switch (kind) {
    case SourceKind::huggingface: return "Hugging Face";
    case SourceKind::mlx: return "MLX";
    case SourceKind::gguf: return "GGUF";
  }
  return "?";
}

const StoredTensor& WeightSource::present(std::string_view name, const Slot& slot) const {
  if (slot.tensor == nullptr) {
    bad_file(
        path_,
        fmt::format("tensor {} is listed in the index, but {} is missing or does not hold it; download the model again",
                    printable(name), printable(*slot.file)));
  }
  return *slot.tensor;
}

const StoredTensor* WeightSource::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &present(name, found->second);
}

bool WeightSource::is_affine(std::string_view name, const StoredTensor& weight) const {
  return kind_ != SourceKind::gguf && weight.dtype == "U32" && name.ends_with(weight_suffix) &&
         contains(std::string(module_of(name)) + ".scales");
}

std::optional<Weight> WeightSource::find(std::string_view name) const {
  const StoredTensor* stored = tensor(name);
  if (stored == nullptr) return std::nullopt;
  if (is_affine(name, *stored)) return affine_weight(name, *stored);
  const std::optional<WeightFormat> format = format_of(stored->dtype);
  if (!format) {
    bad_file(*tensors_.find(name)->second.file,
             fmt::format("tensor {} has dtype {}, which is not read; {}", printable(name), stored->dtype,
                         kind_ == SourceKind::gguf
                             ? "make the file again with llama-quantize as Q4_K_M, Q5_K_M, Q6_K or Q8_0"
                             : "take the bf16, f16 or f32 form of this model, or an MLX affine one"));
  }
  return Weight{.format = *format, .rows = rows_of(*stored), .cols = cols_of(*stored), .data = stored->data.data()};
}

Weight WeightSource::need(std::string_view name) const {
  if (std::optional<Weight> weight = find(name)) return *weight;
  bad_file(path_, fmt::format("has no tensor {}; is it the whole model, and of the family config.json says?",
                              printable(name)));
}

Weight WeightSource::affine_weight(std::string_view name, const StoredTensor& weight) const {
  const std::string module(module_of(name));
  const std::string& file = *tensors_.find(name)->second.file;
  const AffineSettings settings = affine_settings(config_, module, file);
  const StoredTensor& scales = *tensor(module + ".scales");
  const StoredTensor* biases = tensor(module + ".biases");
  auto disagree = [&](const std::string& problem) {
    bad_file(file, fmt::format("tensor {}: {}", printable(name), problem));
  };
  if (biases == nullptr)
    disagree("has .scales but no .biases, which MLX's affine mode needs; download the model again");

  const std::optional<WeightFormat> scale_format = format_of(scales.dtype);
  if (!scale_format || block_bytes(*scale_format) > 4 || block_cols(*scale_format) != 1) {
    disagree(fmt::format("its scales are {}, needed F32, F16 or BF16; quantise the model again", scales.dtype));
  }
  if (biases->dtype != scales.dtype || biases->shape != scales.shape) {
    disagree(fmt::format("its scales are {} {}, its biases {} {}; they must agree, quantise the model again",
                         scales.dtype, shape_text(scales), biases->dtype, shape_text(*biases)));
  }
  const int64_t words = cols_of(weight), groups = cols_of(scales);
  constexpr int64_t most = int64_t{1} << 40;  // keeps the products below in range
  if (weight.shape.size() < 2 || weight.shape.size() != scales.shape.size() || rows_of(weight) != rows_of(scales) ||
      words > most || groups > most || words * 32 != groups * settings.group_size * settings.bits) {
    disagree(
        fmt::format("codes {} and scales {} do not fit {} bits in groups of {}, as config.json has it; "
                    "is config.json from another model?",
                    shape_text(weight), shape_text(scales), settings.bits, settings.group_size));
  }
  return {.format = WeightFormat::affine,
          .rows = rows_of(weight),
          .cols = groups * settings.group_size,
          .data = weight.data.data(),
          .scales = scales.data.data(),
          .biases = biases->data.data(),
          .scale_dtype = *scale_format == WeightFormat::f32   ? DType::f32
                         : *scale_format == WeightFormat::f16 ? DType::f16
                                                              : DType::bf16,
          .bits = settings.bits,
          .group_size = settings.group_size};
}

std::optional<std::vector<int64_t>> WeightSource::shape(std::string_view name) const {
  const StoredTensor* stored = tensor(name);
  if (stored == nullptr) return std::nullopt;
  std::vector<int64_t> shape = stored->shape;
  if (is_affine(name, *stored) && !shape.empty()) shape.back() = affine_weight(name, *stored).cols;
  return shape;
}

std::vector<float> WeightSource::read_vector(std::string_view name) const {
  const StoredTensor* stored = tensor(name);
  if (stored == nullptr) {
    bad_file(path_, fmt::format("has no tensor {}; is it the whole model, and of the family config.json says?",
                                printable(name)));
  }
  std::vector<float> values(static_cast<size_t>(stored->numel()));
  if (stored->data.data() == nullptr) return values;
  auto same = [](auto v) { return v; };
  if (stored->dtype == "F32") read_values<float>(stored->data, values, same);
  else if (stored->dtype == "BF16") read_values<bf16>(stored->data, values, same);
  else if (stored->dtype == "F16") read_values<uint16_t>(stored->data, values, f16_to_float);
  else if (stored->dtype == "F64") read_values<double>(stored->data, values, same);
  else {
    bad_file(*tensors_.find(name)->second.file,
             fmt::format("tensor {} has dtype {}, needed F32, F16, BF16 or F64; convert the model", printable(name),
                         stored->dtype));
  }
  return values;
}

int64_t WeightSource::mapped_bytes() const {
  size_t bytes = gguf_ ? gguf_->map().size() : 0;
  for (const auto& file : files_) bytes += file->map().size();
  return static_cast<int64_t>(bytes);
}

}  // namespace sluice
