#include "tandem/grammar/decimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace tandem::grammar {
namespace {

/// Of a number as C++ prints it: -12, 1.5 or 1e-07.
Decimal parse(std::string_view text) {
  Decimal out;
  out.is_negative = text.starts_with('-');
  if (out.is_negative) text.remove_prefix(1);
  const std::size_t e = std::min(text.find('e'), text.size());
  const std::string_view mantissa = text.substr(0, e);
  out.point = static_cast<int>(std::min(mantissa.find('.'), mantissa.size()));
  for (const char c : mantissa) {
    if (c != '.') out.digits += c;
  }
  if (e < text.size()) out.point += std::atoi(std::string(text.substr(e + 1)).c_str());
  const std::size_t first = std::min(out.digits.find_first_not_of('0'), out.digits.size());
  out.digits.erase(0, first);
  out.point -= static_cast<int>(first);
  out.digits.erase(out.digits.find_last_not_of('0') + 1);
  if (out.is_zero()) return {};
  return out;
}

}  // namespace

std::optional<Decimal> Decimal::of(const boost::json::value& number) {
  if (const auto* value = number.if_int64()) return parse(fmt::format("{}", *value));
  if (const auto* value = number.if_uint64()) return parse(fmt::format("{}", *value));
  const double value = number.as_double();
  if (!std::isfinite(value)) return std::nullopt;
  return parse(fmt::format("{}", value));
}

Decimal Decimal::operator-() const {
  Decimal out = *this;
  out.is_negative = !is_negative && !is_zero();
  return out;
}

int Decimal::digit(int place) const {
  const int index = point + place;
  if (index < 0 || index >= static_cast<int>(digits.size())) return 0;
  return digits[static_cast<std::size_t>(index)] - '0';
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (is_negative != other.is_negative) return other.is_negative <=> is_negative;
  if (is_negative) return -other <=> -*this;
  if (is_zero() || other.is_zero()) return other.is_zero() <=> is_zero();
  if (point != other.point) return point <=> other.point;
  return digits <=> other.digits;
}

std::uint64_t power_modulo(std::uint64_t base, int exponent, std::uint64_t modulus) {
  std::uint64_t power = 1 % modulus;
  for (base %= modulus; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power = power * base % modulus;
    base = base * base % modulus;
  }
  return power;
}

std::optional<DecimalStep> DecimalStep::of(const Decimal& number) {
  if (number.is_negative || number.is_zero()) return std::nullopt;
  DecimalStep step;
  step.scale = std::max(0, static_cast<int>(number.digits.size()) - number.point);
  step.unit = 0;
  for (int place = -std::max(number.point, 0); place < step.scale; ++place) {
    step.unit = step.unit * 10 + static_cast<std::uint64_t>(number.digit(place));
    if (step.unit > kMaxUnit) return std::nullopt;
  }
  return step;
}

bool DecimalStep::divides(const Decimal& number) const {
  const int num_digits = static_cast<int>(number.digits.size());
  if (num_digits - number.point > scale) return false;  // a digit behind the step's last one
  std::uint64_t rest = 0;
  for (const char c : number.digits) {
    rest = (rest * 10 + static_cast<std::uint64_t>(c - '0')) % unit;
  }
  return rest * power_modulo(10, scale + number.point - num_digits, unit) % unit == 0;
}

}  // namespace tandem::grammar
