#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cpu/code_block.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/cpu/pack.h"
#include "tandem/kernels/cpu/panel.h"

// The definition of the arithmetic (docs/kernels.md) in plain code, and the kernels of a machine
// without any known extension. All other instruction sets give these bits.

namespace tandem::kernels::cpu {
namespace {

/// Quantizes x[n], n <= kGroup: one scale.
void quantize_group(const float* x, int n, CodeGroup* out) {
  // Largest magnitude by its bits, so that a value that is not a number wins.
  std::uint32_t largest = 0;
  for (int k = 0; k < n; ++k) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[k]) & 0x7fffffffu);
  }
  const float magnitude = std::bit_cast<float>(largest);
  float scale = 0.0F;
  float inverse = 0.0F;
  if (largest >= kInfinityBits) {
    scale = std::numeric_limits<float>::quiet_NaN();
  } else if (magnitude >= kSmallestMagnitude) {
    scale = magnitude / 127.0F;
    inverse = 127.0F / magnitude;
  }
  for (int begin = 0; begin < n; begin += 32) {
    CodeGroup& g = out[begin / 32];
    g.scale = scale;
    std::int32_t sums[2] = {};
    for (int k = 0; k < 32; ++k) {
      const long code = inverse == 0.0F ? 0 : std::lrintf(x[begin + k] * inverse);
      g.codes[k] = static_cast<std::int8_t>(code);
      sums[k / 16] += g.codes[k];
    }
    g.minus_sum16[0] = -sums[0];
    g.minus_sum16[1] = -sums[1];
    g.minus_sum = -(sums[0] + sums[1]);
  }
}

void quantize_row(const float* x, int cols, CodeGroup* out) {
  for (int k = 0; k < cols; k += kGroup) {
    quantize_group(x + k, std::min(kGroup, cols - k), out + k / 32);
  }
}

/// Rounds x[n] to e4m3 with one scale: out = the e4m3 value nearest to x / scale. A value that is
/// not finite makes the scale, and so every product, not a number.
float round_e4m3(const float* x, int n, float* out) {
  std::uint32_t largest = 0;
  for (int k = 0; k < n; ++k) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[k]) & 0x7fffffffu);
  }
  if (largest >= kInfinityBits) {
    std::fill_n(out, n, 0.0F);
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = std::max(std::bit_cast<float>(largest) / kE4m3Max, kE4m3SmallestScale);
  for (int k = 0; k < n; ++k) {
    const float code = std::clamp(x[k] / scale, -kE4m3Max, kE4m3Max);
    out[k] = formats::e4m3_to_f32(formats::f32_to_e4m3(code));
  }
  return scale;
}

/// The chain of one row of activations `a` over one block of `n` weights, in groups of `group`: a
/// step for each group, whose parts (what shares a weight's scale) are added in ascending order.
float add_block(const CodeBlock& w, const CodeGroup* a, int n, int group, float acc) {
  const int part = w.has_half_scales ? 16 : 32;
  for (int begin = 0; begin < n; begin += group) {
    float v = 0.0F;
    for (int k = begin; k < begin + group; k += part) {
      std::int32_t dot = 0;
      for (int j = k; j < k + part; ++j) {
        dot += w.codes[static_cast<std::size_t>(j)] * a[j / 32].codes[j % 32];
      }
      const float scale = w.scales[static_cast<std::size_t>(k / 16)];
      const auto products = static_cast<float>(dot);
      v = k == begin ? scale * products : std::fma(scale, products, v);
    }
    for (int k = begin; w.has_mins && k < begin + group; k += part) {
      const CodeGroup& codes = a[k / 32];
      const std::int32_t minus_sum =
          w.has_half_scales ? codes.minus_sum16[k % 32 / 16] : codes.minus_sum;
      v = std::fma(w.mins[static_cast<std::size_t>(k / 16)], static_cast<float>(minus_sum), v);
    }
    acc = std::fma(a[begin / 32].scale, v, acc);
  }
  return acc;
}

void multiply_codes(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                    std::size_t ld) {
  const int block = panel_format(w.dtype)->block;
  const int group = std::min(block, kGroup);
  for (int n = tile.panel_begin * kPanelRows; n < std::min(tile.panel_end * kPanelRows, w.rows);
       ++n) {
    for (int k = 0; k < w.cols; k += block) {
      std::array<std::byte, 256> bytes;
      unpack_block(w, n / kPanelRows, n % kPanelRows, k / block, bytes.data());
      const CodeBlock weights = read_code_block(w.dtype, bytes.data());
      for (int r = 0; r < tile.num_rows; ++r) {
        const auto row = static_cast<std::size_t>(r);
        float& y = out[row * ld + static_cast<std::size_t>(n)];
        y = add_block(weights, a.codes + row * a.codes_stride + k / 32, block, group,
                      k == 0 ? 0.0F : y);
      }
    }
  }
}

float plain_value(core::DType dtype, const std::byte* p) {
  if (dtype == core::DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return dtype == core::DType::kF16 ? core::f16_to_f32(bits) : core::bf16_to_f32(bits);
}

void multiply_floats(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                     std::size_t ld) {
  const auto size = static_cast<std::size_t>(panel_format(w.dtype)->word_bytes);
  for (int n = tile.panel_begin * kPanelRows; n < std::min(tile.panel_end * kPanelRows, w.rows);
       ++n) {
    const std::byte* lane = w.data + static_cast<std::size_t>(n / kPanelRows) * w.panel_stride +
                            static_cast<std::size_t>(n % kPanelRows) * size;
    for (int r = 0; r < tile.num_rows; ++r) {
      const float* x = a.x + static_cast<std::size_t>(r) * a.x_stride;
      float acc = 0.0F;
      for (int k = 0; k < w.cols; ++k) {
        const std::byte* p = lane + static_cast<std::size_t>(k) * kPanelRows * size;
        acc = std::fma(plain_value(w.dtype, p), x[k], acc);
      }
      out[static_cast<std::size_t>(r) * ld + static_cast<std::size_t>(n)] = acc;
    }
  }
}

/// Weights as they are stored, by code.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values;
    for (std::size_t code = 0; code < values.size(); ++code) {
      values[code] = formats::e4m3_to_f32(static_cast<std::uint8_t>(code)) / kE4m3WeightUnit;
    }
    return values;
  }();
  return table;
}

/// Block by block: the chain of products of codes, times the scale of the activations, times that
/// of the weights.
void multiply_e4m3(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                   std::size_t ld) {
  const std::array<float, 256>& values = e4m3_values();
  for (int n = tile.panel_begin * kPanelRows; n < std::min(tile.panel_end * kPanelRows, w.rows);
       ++n) {
    const std::byte* lane = w.data + static_cast<std::size_t>(n / kPanelRows) * w.panel_stride +
                            static_cast<std::size_t>(n % kPanelRows);
    const float* scales = e4m3_scales(w, n / kPanelRows) + n % kPanelRows;
    for (int r = 0; r < tile.num_rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      const bool is_rounded = w.e4m3_group > 0;
      const float* x = is_rounded ? a.rounded + row * a.rounded_stride : a.x + row * a.x_stride;
      float& y = out[row * ld + static_cast<std::size_t>(n)];
      for (int begin = 0; begin < w.cols; begin += w.scale_cols) {
        float acc = 0.0F;
        for (int k = begin; k < std::min(begin + w.scale_cols, w.cols); ++k) {
          acc = std::fma(values[std::to_integer<std::size_t>(lane[k * kPanelRows])], x[k], acc);
        }
        const float x_scale =
            is_rounded
                ? a.scales[row * a.scales_stride + static_cast<std::size_t>(begin / w.e4m3_group)]
                : 1.0F;
        const float v = acc * x_scale * scales[begin / w.scale_cols * kPanelRows];
        y = begin == 0 ? v : y + v;
      }
    }
  }
}

void matmul(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
            std::size_t ld) {
  if (w.dtype == core::DType::kF8E4M3) return multiply_e4m3(w, a, tile, out, ld);
  if (core::is_block_quantized(w.dtype)) {
    multiply_codes(w, a, tile, out, ld);
  } else {
    multiply_floats(w, a, tile, out, ld);
  }
}

}  // namespace

const IsaKernels kScalarKernels = {quantize_row, round_e4m3, matmul, attend_int8_scalar};

}  // namespace tandem::kernels::cpu
