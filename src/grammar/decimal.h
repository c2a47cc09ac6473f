#pragma once

#include <boost/json/value.hpp>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace tandem::grammar {

/// An exact decimal number: 0.digits times 10^point. A double is the shortest decimal that reads
/// back as it is, which is how people wrote it.
struct Decimal {
  bool is_negative = false;
  std::string digits;  ///< neither the first nor the last is 0; zero has none
  int point = 0;

  /// Of a JSON number; nothing if it is not finite.
  static std::optional<Decimal> of(const boost::json::value& number);

  bool is_zero() const { return digits.empty(); }
  bool is_integer() const { return point >= static_cast<int>(digits.size()); }
  Decimal operator-() const;
  /// The digit before the point (-1, -2, ...) or behind it (0, 1, ...), 0 to 9.
  int digit(int place) const;

  bool operator==(const Decimal&) const = default;
  std::strong_ordering operator<=>(const Decimal& other) const;
};

/// What numbers may be multiples of: unit times 10^-scale.
struct DecimalStep {
  std::uint64_t unit = 1;  ///< 1 to kMaxUnit
  int scale = 0;           ///< from 0

  static constexpr std::uint64_t kMaxUnit = 10'000'000;

  /// Nothing if it is not positive, or if its unit would be too large.
  static std::optional<DecimalStep> of(const Decimal& number);

  bool divides(const Decimal& number) const;
};

/// base^exponent modulo `modulus` (at most 2^32); exponent from 0.
std::uint64_t power_modulo(std::uint64_t base, int exponent, std::uint64_t modulus);

}  // namespace tandem::grammar
