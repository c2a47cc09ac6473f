#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/check.h"
#include "tandem/formats/dequantize.h"
#include "tandem/formats/safetensors.h"

namespace tandem::formats {

inline const core::TensorView& tensor_of(const SafetensorsFile& file, std::string_view name) {
  const core::TensorView* view = file.find(name);
  TANDEM_CHECK(view != nullptr, std::string(name).c_str());
  return *view;
}

/// All elements of a tensor that can be dequantized, in order.
inline std::vector<float> floats_of(const SafetensorsFile& file, std::string_view name) {
  const core::TensorView& view = tensor_of(file, name);
  std::vector<float> out(static_cast<std::size_t>(view.elements()));
  dequantize_row(view.dtype, view.data, view.elements(), out.data());
  return out;
}

/// All elements of a tensor of I64 or of integers that are not negative, in order.
inline std::vector<std::int64_t> ints_of(const SafetensorsFile& file, std::string_view name) {
  const core::TensorView& view = tensor_of(file, name);
  const std::size_t size = core::row_bytes(view.dtype, 1);
  std::vector<std::int64_t> out(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < out.size(); ++i) std::memcpy(&out[i], view.data + i * size, size);
  return out;
}

}  // namespace tandem::formats
