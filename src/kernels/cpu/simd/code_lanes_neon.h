#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/simd/lanes_neon.h"

namespace tandem::kernels::cpu {

/// Integer side of the matrix products in NEON with the dot product extension: a vector of a panel
/// in four registers. sdot multiplies signed bytes and adds in 32 bits: exact for every code.
struct NeonCodes : NeonLanes {
  struct Bytes {
    uint8x16_t v[4];  // four rows each
  };
  static constexpr int kRows = 4;
  static constexpr int kPanels = 1;
  static constexpr bool kUnsignedCodes = false;
  static constexpr int kScratchColumns = 512;
  /// Groups that share vectors are not summed side by side; unmeasured.
  static constexpr int kSumRegisters = 0;
  /// Up to so many rows take their codes from the packed panels.
  static constexpr int direct_rows(core::DType dtype) {
    using enum core::DType;
    return dtype == kQ4_K || dtype == kQ6_K || dtype == kQ5_0 || dtype == kQ8_0 ? 1 : 0;
  }
  static constexpr int code_max(int) { return 255; }  // makes no difference here
  static constexpr int steps_in_16_bits(int) { return 0; }

  template <typename Op>
  static Bytes bytes(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
  }

  static Bytes load_bytes(const std::uint8_t* p) {
    return bytes([=](int i) { return vld1q_u8(p + 16 * i); });
  }
  static void store_bytes(std::uint8_t* p, Bytes a) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, a.v[i]);
  }
  template <int kShift, int kMask>
  static Bytes bits(Bytes a) {
    return bytes([&](int i) {
      uint8x16_t b = a.v[i];
      if constexpr (kShift > 0) b = vshrq_n_u8(b, kShift);
      if constexpr (kShift < 0) b = vshlq_n_u8(b, -kShift);
      return vandq_u8(b, vdupq_n_u8(kMask));
    });
  }
  static Bytes shift_bytes_right(Bytes a, int n) {
    const int8x16_t count = vdupq_n_s8(static_cast<std::int8_t>(-n));
    return bytes([&](int i) { return vshlq_u8(a.v[i], count); });
  }
  static Bytes shift_words_right(Bytes a, int n) {
    const int32x4_t count = vdupq_n_s32(-n);
    return bytes([&](int i) {
      return vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(a.v[i]), count));
    });
  }
  static Bytes either(Bytes a, Bytes b) {
    return bytes([&](int i) { return vorrq_u8(a.v[i], b.v[i]); });
  }
  static Bytes flip_top_bit(Bytes a) {
    return bytes([&](int i) { return veorq_u8(a.v[i], vdupq_n_u8(128)); });
  }
  static Bytes lookup(const std::uint8_t* table, Bytes index) {
    const uint8x16_t t = vld1q_u8(table);
    return bytes([&](int i) { return vqtbl1q_u8(t, index.v[i]); });
  }

  static I32 set1_i32(std::int32_t x) {
    return words([=](int) { return vdupq_n_s32(x); });
  }
  template <int kShift>
  static I32 shift_left(I32 a) {
    return words([&](int i) { return vshlq_n_s32(a.v[i], kShift); });
  }
  static I32 add_i32(I32 a, I32 b) {
    return words([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
  }
  template <int kIndex>
  static I32 byte_of_words(Bytes a) {
    return words([&](int i) {
      uint32x4_t w = vreinterpretq_u32_u8(a.v[i]);
      if constexpr (kIndex > 0) w = vshrq_n_u32(w, 8 * kIndex);
      return vreinterpretq_s32_u32(vandq_u32(w, vdupq_n_u32(255)));
    });
  }
  template <int kIndex>
  static I32 signed_byte_of_words(Bytes a) {
    return words([&](int i) {
      const int32x4_t w = vreinterpretq_s32_u8(a.v[i]);
      return vshrq_n_s32(vshlq_n_s32(w, 24 - 8 * kIndex), 24);
    });
  }
  static F32 f16_low(Bytes a) {
    return each([&](int i) { return widen(vmovn_u32(vreinterpretq_u32_u8(a.v[i]))); });
  }
  static F32 f16_high(Bytes a) {
    return each([&](int i) { return widen(vshrn_n_u32(vreinterpretq_u32_u8(a.v[i]), 16)); });
  }
  static F32 load_bf16(const std::uint16_t* p) {
    return each([&](int i) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p + 4 * i)), 16));
    });
  }

  static F32 load_e4m3(const std::uint8_t* p) {
    return each([&](int i) {
      std::uint32_t word;
      __builtin_memcpy(&word, p + 4 * i, sizeof word);
      const int16x4_t code = vget_low_s16(vmovl_s8(vcreate_s8(word)));
      return widen(vand_u16(vreinterpret_u16_s16(vshl_n_s16(code, 7)), vdup_n_u16(0xbf80)));
    });
  }
  template <int H>
  static F32 load_e4m3_byte(const std::uint16_t* p) {
    return each([&](int i) {
      uint16x4_t code = vld1_u16(p + 4 * i);
      if constexpr (H == 1) code = vshr_n_u16(code, 8);
      return widen(vshl_n_u16(vand_u16(code, vdup_n_u16(0x7f)), 7));
    });
  }
  static F32 power_of(F32 x) {
    return each([&](int i) {
      const uint32x4_t bits = vreinterpretq_u32_f32(x.v[i]);
      return vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0x7f800000)));
    });
  }

  using Quad = int8x16_t;
  static Quad broadcast_quad(const std::int8_t* p) {
    std::int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
  }
  template <int kCodeMax>
  static I32 dot(I32 acc, Bytes codes, Quad a) {
    return words([&](int i) { return vdotq_s32(acc.v[i], vreinterpretq_s8_u8(codes.v[i]), a); });
  }

  // ---- quantization of activations, 16 at a time

  static I32 max_magnitude(I32 max, const float* x) {
    return words([&](int i) {
      const float32x4_t v = vabsq_f32(vld1q_f32(x + 4 * i));
      const uint32x4_t m = vreinterpretq_u32_s32(max.v[i]);
      return vreinterpretq_s32_u32(vmaxq_u32(m, vreinterpretq_u32_f32(v)));
    });
  }
  static std::uint32_t largest(I32 a) {
    const int32x4_t low = vmaxq_s32(a.v[0], a.v[1]);
    const int32x4_t high = vmaxq_s32(a.v[2], a.v[3]);
    return static_cast<std::uint32_t>(vmaxvq_s32(vmaxq_s32(low, high)));
  }
  static std::int32_t quantize16(const float* x, float inverse, std::int8_t* codes) {
    const I32 q = words([&](int i) {
      return vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + 4 * i), vdupq_n_f32(inverse)));
    });
    const int16x8_t low = vcombine_s16(vmovn_s32(q.v[0]), vmovn_s32(q.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(q.v[2]), vmovn_s32(q.v[3]));
    const int8x16_t packed = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
    vst1q_s8(codes, packed);
    return vaddlvq_s8(packed);
  }

 private:
  static float32x4_t widen(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
};

}  // namespace tandem::kernels::cpu
