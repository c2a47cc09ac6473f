#include "tandem/core/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tandem::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_f16_nan(std::uint16_t h) {
  return (h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) != 0;
}

/// By the definition of binary16.
double f16_value(std::uint16_t h) {
  const double sign = (h & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  if (exponent == 31) return sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryF16DecodesToItsValue) {
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto h = static_cast<std::uint16_t>(i);
    const float f = f16_to_f32(h);
    if (is_f16_nan(h)) {
      EXPECT_TRUE(std::isnan(f)) << i;
    } else {
      EXPECT_EQ(static_cast<double>(f), f16_value(h)) << i;
      EXPECT_EQ(std::signbit(f), (h & 0x8000u) != 0) << i;
    }
  }
}

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto h = static_cast<std::uint16_t>(i);
    if (is_f16_nan(h)) {
      EXPECT_TRUE(is_f16_nan(f32_to_f16(f16_to_f32(h)))) << i;
    } else {
      EXPECT_EQ(f32_to_f16(f16_to_f32(h)), h) << i;
    }
  }
}

// Between neighbours the nearer wins; exactly in the middle the even one does.
TEST(Half, F16RoundsToNearestEven) {
  for (std::uint32_t i = 0; i < 0x7bffu; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const auto middle = static_cast<float>((f16_value(low) + f16_value(high)) / 2);
    EXPECT_EQ(f32_to_f16(middle), (low & 1u) == 0 ? low : high) << i;
    EXPECT_EQ(f32_to_f16(std::nextafterf(middle, 0.0F)), low) << i;
    EXPECT_EQ(f32_to_f16(std::nextafterf(middle, kInfinity)), high) << i;
    EXPECT_EQ(f32_to_f16(-middle), f32_to_f16(middle) | 0x8000u) << i;
  }
}

TEST(Half, F16OverflowsToInfinity) {
  EXPECT_EQ(f32_to_f16(65504.0F), 0x7bffu);
  EXPECT_EQ(f32_to_f16(std::nextafterf(65520.0F, 0.0F)), 0x7bffu);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7c00u);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::max()), 0xfc00u);
  EXPECT_EQ(f32_to_f16(kInfinity), 0x7c00u);
  EXPECT_TRUE(is_f16_nan(f32_to_f16(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Half, F16UnderflowsToSignedZero) {
  EXPECT_EQ(f32_to_f16(0x1p-25F), 0x0000u);  // a tie: even is zero
  EXPECT_EQ(f32_to_f16(std::nextafterf(0x1p-25F, 1.0F)), 0x0001u);
  EXPECT_EQ(f32_to_f16(-1e-30F), 0x8000u);
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i < 0x10000u; ++i) {
    const auto b = static_cast<std::uint16_t>(i);
    const float f = bf16_to_f32(b);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f)))) << i;
    } else {
      EXPECT_EQ(f32_to_bf16(f), b) << i;
    }
  }
}

TEST(Half, Bf16RoundsToNearestEven) {
  std::mt19937 rng(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(rng());
    const float f = std::bit_cast<float>(bits);
    if (!std::isfinite(f)) continue;
    const std::uint32_t rest = bits & 0xffffu;
    std::uint32_t want = bits >> 16;
    if (rest > 0x8000u || (rest == 0x8000u && (want & 1u) != 0)) ++want;
    EXPECT_EQ(f32_to_bf16(f), want) << bits;
  }
}

}  // namespace
}  // namespace tandem::core
