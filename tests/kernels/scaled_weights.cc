#include "scaled_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tandem/core/checked_math.h"
#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"

namespace tandem::test {

using core::DType;

OwnedWeight random_e4m3(int rows, int cols, int scale_rows, int scale_cols, int e4m3_group,
                        std::uint32_t seed, float rms) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, rms);
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& v : values) v = normal(random);
  const int blocks = core::ceil_div(cols, scale_cols);
  std::vector<float> scales(static_cast<std::size_t>(core::ceil_div(rows, scale_rows) * blocks));
  const auto scale_at = [&](int i) -> float& {
    return scales[static_cast<std::size_t>(i / cols / scale_rows * blocks + i % cols / scale_cols)];
  };
  for (int i = 0; i < rows * cols; ++i) {
    scale_at(i) = std::max(scale_at(i), std::fabs(values[static_cast<std::size_t>(i)]) / 448.0F);
  }
  OwnedWeight w;
  w.scales.resize(2 * scales.size());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::uint16_t half = core::f32_to_bf16(scales[i]);
    std::memcpy(&w.scales[2 * i], &half, sizeof half);
    scales[i] = core::bf16_to_f32(half);
  }
  for (int i = 0; i < rows * cols; ++i) {
    const float code =
        std::clamp(values[static_cast<std::size_t>(i)] / scale_at(i), -448.0F, 448.0F);
    w.bytes.push_back(std::byte{formats::f32_to_e4m3(code)});
  }
  w.view.tensor = {w.bytes.data(), DType::kF8E4M3, 2, {rows, cols, 1, 1}};
  w.view.scales = {
      w.scales.data(), DType::kBF16, 2, {core::ceil_div(rows, scale_rows), blocks, 1, 1}};
  w.view.scale_rows = scale_rows;
  w.view.scale_cols = scale_cols;
  w.view.e4m3_group = e4m3_group;
  return w;
}

OwnedWeight random_nvfp4(int rows, int cols, std::uint32_t seed, float rms) {
  std::mt19937 random(seed);
  OwnedWeight w;
  w.bytes.resize(static_cast<std::size_t>(rows * cols / 2));
  for (std::byte& b : w.bytes) b = static_cast<std::byte>(random() & 0xFF);
  w.scales.resize(static_cast<std::size_t>(rows * cols / 16));
  for (std::byte& b : w.scales) b = static_cast<std::byte>(0x28 + random() % 0x18);  // 0.25 to 2
  w.view.tensor = {w.bytes.data(), DType::kU8, 2, {rows, cols / 2, 1, 1}};
  w.view.scales = {w.scales.data(), DType::kF8E4M3, 2, {rows, cols / 16, 1, 1}};
  w.view.scale_rows = 1;
  w.view.scale_cols = 16;
  std::vector<float> row(static_cast<std::size_t>(cols));
  double squares = 0.0;
  for (int r = 0; r < rows; ++r) {
    w.view.values(r, row);
    for (const float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
  }
  w.view.factor = rms / static_cast<float>(std::sqrt(squares / rows / cols));
  return w;
}

}  // namespace tandem::test
