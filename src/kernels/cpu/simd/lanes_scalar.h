#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tandem/core/half.h"

namespace tandem::kernels::cpu {

/// Sixteen f32 lanes in plain C++: the model that every instruction set follows bit for bit.
/// Comparisons with NaN are false, so max(a, b) returns b and select_less returns its last
/// argument.
struct ScalarLanes {
  static constexpr int kSums = 8;  ///< that attention keeps in registers
  struct F32 {
    float v[16];
  };
  struct I32 {
    std::int32_t v[16];
  };
  struct I16 {
    std::int16_t v[32];  // two neighbours belong to a lane
  };

  template <typename F>
  static F32 each(F f) {
    F32 r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
  }

  static F32 set1(float x) {
    return each([=](int) { return x; });
  }
  static F32 load(const float* p) {
    return each([=](int i) { return p[i]; });
  }
  /// Lanes from n on are 0.
  static F32 load_part(const float* p, int n) {
    return each([=](int i) { return i < n ? p[i] : 0.0F; });
  }
  static void store(float* p, F32 a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static void store_part(float* p, int n, F32 a) {
    for (int i = 0; i < n; ++i) p[i] = a.v[i];
  }
  static F32 load_f16(const std::uint16_t* p) {
    return each([=](int i) { return core::f16_to_f32(p[i]); });
  }

  // ---- products of 16-bit codes; no sum leaves 32 bits

  static I32 zero() { return {}; }
  static I32 load_i32(const void* p) {
    I32 r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  static void store_i32(void* p, I32 a) { std::memcpy(p, &a, sizeof a); }
  static F32 to_f32(I32 a) {
    return each([&](int i) { return static_cast<float>(a.v[i]); });
  }
  static I16 load_i16(const std::int16_t* p) {
    I16 r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  /// p[2], for every lane.
  static I16 broadcast_pair(const std::int16_t* p) {
    I16 r;
    for (int i = 0; i < 32; ++i) r.v[i] = p[i % 2];
    return r;
  }
  /// acc + the sum of each lane's two products.
  static I32 dot_pairs(I32 acc, I16 a, I16 b) {
    for (int i = 0; i < 16; ++i) {
      acc.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
    }
    return acc;
  }
  /// To nearest even, |a| < 2^15; NaN gives some code.
  static void store_codes(std::int16_t* p, F32 a) {
    for (int i = 0; i < 16; ++i) {
      // Adding 1.5 * 2^23 leaves the code in the low mantissa bits.
      p[i] = static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(a.v[i] + 12582912.0F));
    }
  }

  static F32 add(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F32 sub(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F32 mul(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F32 div(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  /// a * b + c, rounded once.
  static F32 fma(F32 a, F32 b, F32 c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  /// c - a * b, rounded once.
  static F32 fnma(F32 a, F32 b, F32 c) {
    return each([&](int i) { return std::fma(-a.v[i], b.v[i], c.v[i]); });
  }
  static F32 max(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F32 min(F32 a, F32 b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  /// To the nearest integer, ties to even.
  static F32 round(F32 a) {
    return each([&](int i) { return std::nearbyint(a.v[i]); });
  }
  /// a < b ? x : y.
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return each([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
  }
  /// 2^n for integral n in [-126, 127]; NaN gives some finite value.
  static F32 pow2(F32 n) {
    return each([&](int i) {
      // Adding 1.5 * 2^23 leaves n in the low mantissa bits.
      const auto bits = std::bit_cast<std::uint32_t>(n.v[i] + 12582912.0F);
      return std::bit_cast<float>((bits + 127U) << 23);
    });
  }

  /// ((lanes 0-7 + lanes 8-15) halved again and again): the one order of every horizontal sum.
  static float sum(F32 a) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    }
    return a.v[0];
  }
  static float first_lane(F32 a) { return a.v[0]; }
  static float max_of(F32 a) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
    }
    return a.v[0];
  }
};

}  // namespace tandem::kernels::cpu
