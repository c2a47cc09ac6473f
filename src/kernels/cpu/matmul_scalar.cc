#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tandem/core/half.h"
#include "tandem/kernels/cpu/code_block.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/cpu/pack.h"
#include "tandem/kernels/cpu/panel.h"

// The definition of the arithmetic (docs/kernels.md) in plain code, and the kernels of a machine
// without any known extension. All other instruction sets give these bits.

namespace tandem::kernels::cpu {
namespace {

void quantize_group(const float* x, int n, std::int8_t* codes, float* scale) {
  // Largest magnitude by its bits, so that a value that is not a number wins.
  std::uint32_t largest = 0;
  for (int k = 0; k < n; ++k) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[k]) & 0x7fffffffu);
  }
  const float magnitude = std::bit_cast<float>(largest);
  std::fill_n(codes, n, std::int8_t{0});
  if (largest >= kInfinityBits) {
    *scale = std::numeric_limits<float>::quiet_NaN();
  } else if (magnitude < kSmallestMagnitude) {
    *scale = 0.0F;
  } else {
    const float inverse = 127.0F / magnitude;
    *scale = magnitude / 127.0F;
    for (int k = 0; k < n; ++k) codes[k] = static_cast<std::int8_t>(std::lrintf(x[k] * inverse));
  }
}

void quantize_row(const float* x, int cols, const QuantizedRow& out) {
  for (int k = 0; k < cols; k += kGroup) {
    quantize_group(x + k, std::min(kGroup, cols - k), out.codes + k, out.scales + k / kGroup);
  }
  for (int k = 0; k < cols; k += 32) {
    const auto sum16 = [&](int begin) {
      std::int32_t sum = 0;
      for (int i = 0; i < 16; ++i) sum += out.codes[begin + i];
      return sum;
    };
    out.sums16[k / 16] = sum16(k);
    out.sums16[k / 16 + 1] = sum16(k + 16);
    out.sums32[k / 32] = out.sums16[k / 16] + out.sums16[k / 16 + 1];
  }
}

/// The chain of one row of activations over one block of `n` weights, in groups of `group`;
/// `k` is the block's first column.
float add_block(const CodeBlock& w, const Activations& a, std::size_t row, int k, int n, int group,
                float acc) {
  const std::int8_t* codes = a.codes + row * a.codes_stride + k;
  const std::int32_t* sums16 = a.sums16 + row * a.sums_stride + k / 16;
  const float* scales = a.scales + row * a.scales_stride;
  for (int begin = 0; begin < n; begin += group) {
    std::int32_t s = 0;
    std::int32_t t = 0;
    for (int i = begin / 16; i < std::min(begin + group, n) / 16; ++i) {
      std::int32_t dot = 0;
      for (int j = 16 * i; j < 16 * i + 16; ++j) {
        dot += w.codes[static_cast<std::size_t>(j)] * codes[j];
      }
      s += w.scales[static_cast<std::size_t>(i)] * dot;
      t += w.mins[static_cast<std::size_t>(i)] * sums16[i];
    }
    float v = w.d * static_cast<float>(s);
    if (w.has_mins) v = std::fma(-w.dmin, static_cast<float>(t), v);
    acc = std::fma(scales[(k + begin) / kGroup], v, acc);
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
        y = add_block(weights, a, row, k, block, group, k == 0 ? 0.0F : y);
      }
    }
  }
}

float plain_value(core::DType dtype, const std::byte* word, int half) {
  float value = 0.0F;
  std::uint16_t bits = 0;
  if (dtype == core::DType::kF32) {
    std::memcpy(&value, word, sizeof value);
    return value;
  }
  std::memcpy(&bits, word + 2 * half, sizeof bits);
  return dtype == core::DType::kF16 ? core::f16_to_f32(bits) : core::bf16_to_f32(bits);
}

void multiply_floats(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                     std::size_t ld) {
  const int block = panel_format(w.dtype)->block;
  for (int n = tile.panel_begin * kPanelRows; n < std::min(tile.panel_end * kPanelRows, w.rows);
       ++n) {
    const std::byte* lane = w.data + static_cast<std::size_t>(n / kPanelRows) * w.panel_stride +
                            static_cast<std::size_t>(n % kPanelRows) * 4;
    for (int r = 0; r < tile.num_rows; ++r) {
      const float* x = a.x + static_cast<std::size_t>(r) * a.x_stride;
      float acc = 0.0F;
      for (int k = 0; k < w.cols; ++k) {
        const std::byte* word = lane + static_cast<std::size_t>(k / block) * kVectorBytes;
        acc = std::fma(plain_value(w.dtype, word, k % block), x[k], acc);
      }
      out[static_cast<std::size_t>(r) * ld + static_cast<std::size_t>(n)] = acc;
    }
  }
}

void matmul(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
            std::size_t ld) {
  if (core::is_block_quantized(w.dtype)) {
    multiply_codes(w, a, tile, out, ld);
  } else {
    multiply_floats(w, a, tile, out, ld);
  }
}

}  // namespace

const IsaKernels kScalarKernels = {quantize_row, matmul};

}  // namespace tandem::kernels::cpu
