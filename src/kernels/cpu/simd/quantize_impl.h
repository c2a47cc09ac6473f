#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// Quantization of activations; the definition is in matmul_scalar.cc.
template <class L>
struct Quantizer {
  static void quantize_group(const float* x, int n, CodeGroup* out) {
    auto max = L::zero();
    for (int k = 0; k < n; k += 16) max = L::max_magnitude(max, x + k);
    const std::uint32_t bits = L::largest(max);
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
    float scale = 0.0F;
    float inverse = 0.0F;
    if (bits >= kInfinityBits) {
      scale = __builtin_nanf("");
    } else if (magnitude >= kSmallestMagnitude) {
      scale = magnitude / 127.0F;
      inverse = 127.0F / magnitude;
    }
    for (int k = 0; k < n; k += 32, ++out) {
      out->scale = scale;
      if (inverse == 0.0F) {
        *out = {{}, scale, 0, {}};
        continue;
      }
      const std::int32_t low = L::quantize16(x + k, inverse, out->codes);
      const std::int32_t high = L::quantize16(x + k + 16, inverse, out->codes + 16);
      out->minus_sum16[0] = -low;
      out->minus_sum16[1] = -high;
      out->minus_sum = -(low + high);
    }
  }

  static void quantize_row(const float* x, int cols, CodeGroup* out) {
    for (int k = 0; k < cols; k += kGroup) {
      quantize_group(x + k, cols - k < kGroup ? cols - k : kGroup, out + k / 32);
    }
  }
};

}  // namespace tandem::kernels::cpu
