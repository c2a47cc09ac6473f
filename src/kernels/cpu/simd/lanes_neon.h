#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace tandem::kernels::cpu {

/// Sixteen f32 lanes in four NEON registers; see lanes_scalar.h for the meaning of each function.
struct NeonLanes {
  static constexpr int kSums = 6;  ///< that attention keeps in registers
  struct F32 {
    float32x4_t v[4];
  };
  struct I32 {
    int32x4_t v[4];
  };
  struct I16 {
    int16x8_t v[4];
  };

  template <typename F>
  static F32 each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  template <typename F>
  static I32 words(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }

  static F32 set1(float x) {
    return each([=](int) { return vdupq_n_f32(x); });
  }
  static F32 load(const float* p) {
    return each([=](int i) { return vld1q_f32(p + 4 * i); });
  }
  static F32 load_part(const float* p, int n) {
    float lanes[16] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(float* p, F32 a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
  }
  static void store_part(float* p, int n, F32 a) {
    float lanes[16];
    store(lanes, a);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static F32 load_f16(const std::uint16_t* p) {
    return each([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
  }

  static I32 zero() {
    return words([](int) { return vdupq_n_s32(0); });
  }
  static I32 load_i32(const void* p) {
    return words([=](int i) { return vld1q_s32(static_cast<const std::int32_t*>(p) + 4 * i); });
  }
  static void store_i32(void* p, I32 a) {
    for (int i = 0; i < 4; ++i) vst1q_s32(static_cast<std::int32_t*>(p) + 4 * i, a.v[i]);
  }
  static F32 to_f32(I32 a) {
    return each([&](int i) { return vcvtq_f32_s32(a.v[i]); });
  }
  static I16 load_i16(const std::int16_t* p) {
    return {{vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)}};
  }
  static I16 broadcast_pair(const std::int16_t* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    const int16x8_t v = vreinterpretq_s16_s32(vdupq_n_s32(pair));
    return {{v, v, v, v}};
  }
  static I32 dot_pairs(I32 acc, I16 a, I16 b) {
    return words([&](int i) {
      const int32x4_t low = vmull_s16(vget_low_s16(a.v[i]), vget_low_s16(b.v[i]));
      return vaddq_s32(acc.v[i], vpaddq_s32(low, vmull_high_s16(a.v[i], b.v[i])));
    });
  }
  static void store_codes(std::int16_t* p, F32 a) {
    for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vmovn_s32(vcvtnq_s32_f32(a.v[i])));
  }

  static F32 add(F32 a, F32 b) {
    return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F32 sub(F32 a, F32 b) {
    return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  static F32 mul(F32 a, F32 b) {
    return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F32 div(F32 a, F32 b) {
    return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
  }
  static F32 fma(F32 a, F32 b, F32 c) {
    return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  static F32 fnma(F32 a, F32 b, F32 c) {
    return each([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  static F32 max(F32 a, F32 b) {
    return each([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
  }
  static F32 min(F32 a, F32 b) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
  }
  static F32 round(F32 a) {
    return each([&](int i) { return vrndnq_f32(a.v[i]); });
  }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]); });
  }
  static F32 pow2(F32 n) {
    return each([&](int i) {
      const uint32x4_t bits = vreinterpretq_u32_f32(vaddq_f32(n.v[i], vdupq_n_f32(12582912.0F)));
      return vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(bits, vdupq_n_u32(127)), 23));
    });
  }

  static float sum(F32 a) {
    // Lanes i + (i + 8), then i + (i + 4), then i + (i + 2), then 0 + 1.
    const float32x4_t b = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
  }
  static float first_lane(F32 a) { return vgetq_lane_f32(a.v[0], 0); }
  static float max_of(F32 a) {
    float lanes[16];
    store(lanes, a);
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) {
        lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
      }
    }
    return lanes[0];
  }
};

}  // namespace tandem::kernels::cpu
