#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// Quantization of activations; the definition is in matmul_scalar.cc.
template <class L>
struct Quantizer {
  using F32 = typename L::F32;

  /// fn(16 values, offset, count of them that are x's): the last vector is filled up with zeros.
  template <typename Fn>
  static void for_each_vector(const float* x, int n, Fn fn) {
    int k = 0;
    for (; k + 16 <= n; k += 16) fn(x + k, k, 16);
    if (k == n) return;
    float rest[16] = {};
    for (int i = k; i < n; ++i) rest[i - k] = x[i];
    fn(rest, k, n - k);
  }

  /// The e4m3 value nearest to x, ties to even, |x| <= 448: three bits behind the leading one, or
  /// multiples of 2^-9. Adding and taking away 1.5 * 2^20 of x's power of two drops the others.
  static F32 round_to_e4m3(F32 x) {
    const F32 power = L::max(L::power_of(x), L::set1(0x1p-6F));
    const F32 rounder = L::mul(power, L::set1(0x1.8p20F));
    return L::sub(L::add(x, rounder), rounder);
  }

  /// Scales of as many groups are computed side by side: a division alone takes as long.
  static constexpr int kSideBySide = 16;

  /// Columns that share a scale.
  static void quantize_group(const float* x, int n, float scale, float inverse, CodeGroup* out) {
    for (int k = 0; k < n; k += 32, ++out) {
      if (inverse == 0.0F) {
        *out = {{}, scale, 0, {}};
        continue;
      }
      const std::int32_t low = L::quantize16(x + k, inverse, out->codes);
      const std::int32_t high = L::quantize16(x + k + 16, inverse, out->codes + 16);
      out->scale = scale;
      out->minus_sum = -(low + high);
      out->minus_sum16[0] = -low;
      out->minus_sum16[1] = -high;
    }
  }

  /// Up to kSideBySide groups.
  static void quantize_groups(const float* x, int cols, CodeGroup* out) {
    alignas(64) float magnitudes[kSideBySide] = {};
    for (int k = 0, g = 0; k < cols; ++g) {
      auto max = L::zero();
      for (const int end = k + group_at(k, cols); k < end; k += 16) {
        max = L::max_magnitude(max, x + k);
      }
      const std::uint32_t bits = L::largest(max);
      __builtin_memcpy(&magnitudes[g], &bits, sizeof bits);
    }
    // A magnitude that is no number is not less than anything.
    const F32 magnitude = L::load(magnitudes);
    const F32 zero = L::set1(0.0F);
    const F32 infinity = L::set1(__builtin_inff());
    const F32 smallest = L::set1(kSmallestMagnitude);
    const F32 scale = L::select_less(magnitude, infinity, L::div(magnitude, L::set1(127.0F)),
                                     L::set1(__builtin_nanf("")));
    const F32 inverse =
        L::select_less(magnitude, infinity, L::div(L::set1(127.0F), magnitude), zero);
    alignas(64) float scales[kSideBySide];
    alignas(64) float inverses[kSideBySide];
    L::store(scales, L::select_less(magnitude, smallest, zero, scale));
    L::store(inverses, L::select_less(magnitude, smallest, zero, inverse));
    for (int k = 0, g = 0; k < cols; k += kGroup, ++g) {
      quantize_group(x + k, group_at(k, cols), scales[g], inverses[g], out + k / 32);
    }
  }
  static int group_at(int k, int cols) { return cols - k < kGroup ? cols - k : kGroup; }

  static float round_e4m3(const float* x, int n, float* out) {
    auto max = L::zero();
    for_each_vector(x, n, [&](const float* v, int, int) { max = L::max_magnitude(max, v); });
    const std::uint32_t bits = L::largest(max);
    if (bits >= kInfinityBits) {
      for (int k = 0; k < n; ++k) out[k] = 0.0F;
      return __builtin_nanf("");
    }
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
    const float ratio = magnitude / kE4m3Max;
    const float scale = ratio < kE4m3SmallestScale ? kE4m3SmallestScale : ratio;
    for_each_vector(x, n, [&](const float* v, int k, int count) {
      const F32 code =
          L::min(L::max(L::div(L::load(v), L::set1(scale)), L::set1(-kE4m3Max)), L::set1(kE4m3Max));
      L::store_part(out + k, count, round_to_e4m3(code));
    });
    return scale;
  }

  static void quantize_row(const float* x, int cols, CodeGroup* out) {
    constexpr int kAtOnce = kSideBySide * kGroup;
    for (int k = 0; k < cols; k += kAtOnce) {
      quantize_groups(x + k, cols - k < kAtOnce ? cols - k : kAtOnce, out + k / 32);
    }
  }
};

}  // namespace tandem::kernels::cpu
