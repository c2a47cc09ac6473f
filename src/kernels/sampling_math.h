#pragma once

// The arithmetic of sampling, one for host and devices, so that the same logits give the same
// token everywhere: basic operations in f32, sums in integers.

#include <cstdint>
#include <cstring>

#include "tandem/core/units.h"
#include "tandem/kernels/host_device.h"
#include "tandem/kernels/step.h"

namespace tandem::kernels {

/// exp(x) for x <= 0 to about 2 ulp, in basic operations only so that it is the same everywhere
/// (a libm may pick its code by CPU): x = n ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor series.
/// Below -87, and for NaN, it returns e^-87, whose mass is 0.
TANDEM_HOST_DEVICE inline float exp_weight(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to an integer in the low bits
  x = x > kLowest ? x : kLowest;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

/// A weight as an integer, 2^40 for the likeliest token: sums of up to 2^23 of them are exact in
/// any order, and no token below 1e-12 of the likeliest one is ever drawn.
TANDEM_HOST_DEVICE inline std::uint64_t mass_of(float weight) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(weight * 0x1p40F));
}

/// A row's law before truncation, relative to its largest logit.
struct Law {
  float max = 0.0F;
  float inverse_temperature = 1.0F;
  float min_weight = 0.0F;  ///< tokens below it are not drawn (min-p)

  /// Needs temperature > 0.
  TANDEM_HOST_DEVICE static Law of(const SamplingParams& p, float max) {
    // The reciprocal of a smaller number may overflow; sampling is greedy far above it.
    constexpr float kCold = 1.17549435e-38F;
    return {max, 1.0F / (p.temperature > kCold ? p.temperature : kCold),
            p.min_p < 1.0F ? p.min_p : 1.0F};
  }
  TANDEM_HOST_DEVICE float log_weight(float logit) const {
    return (logit - max) * inverse_temperature;
  }
  TANDEM_HOST_DEVICE float weight(float logit) const { return exp_weight(log_weight(logit)); }
  TANDEM_HOST_DEVICE std::uint64_t mass(float logit) const { return mass_of(weight(logit)); }
  /// The same, 0 where min-p forbids the token.
  TANDEM_HOST_DEVICE std::uint64_t drawn_mass(float logit) const {
    const float w = weight(logit);
    return w >= min_weight ? mass_of(w) : 0;
  }
};

/// A logit after a rule's change of it.
TANDEM_HOST_DEVICE inline float changed(float logit, const LogitChange& change) {
  return (logit > 0.0F ? logit / change.divisor : logit * change.divisor) + change.addend;
}

/// Whether the likeliest token is chosen without a random number.
TANDEM_HOST_DEVICE inline bool is_greedy(const SamplingParams& p) {
  return !(p.temperature > 0.0F) || p.top_k == 1;
}

/// total * fraction / 2^64, rounded down.
TANDEM_HOST_DEVICE inline std::uint64_t share_of(std::uint64_t total, std::uint64_t fraction) {
#ifdef __CUDA_ARCH__
  return __umul64hi(total, fraction);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{total} * fraction) >> 64);
#endif
}

/// The mass that the smallest set of likeliest tokens must reach, 0 <= top_p < 1. At least 1: the
/// likeliest token always stays.
TANDEM_HOST_DEVICE inline std::uint64_t nucleus_of(std::uint64_t total, float top_p) {
  const std::uint64_t mass = share_of(total, static_cast<std::uint64_t>(top_p * 0x1p64F));
  return mass > 0 ? mass : 1;
}

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), in
/// place.
TANDEM_HOST_DEVICE inline void philox4x32_10(std::uint32_t (&counter)[4], std::uint32_t key0,
                                             std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<std::uint32_t>(b);
    counter[2] = static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<std::uint32_t>(a);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

/// 64 random bits from a counter-based generator (key = seed, counter = position): equal
/// everywhere, no state.
TANDEM_HOST_DEVICE inline std::uint64_t random_bits(std::uint64_t seed, Position position) {
  std::uint32_t counter[4] = {static_cast<std::uint32_t>(position), 0, 0, 0};
  philox4x32_10(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return std::uint64_t{counter[0]} << 32 | counter[1];
}

}  // namespace tandem::kernels
