#include "tandem/core/checked_math.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <limits>

namespace tandem::core {
namespace {

constexpr auto kMaxU64 = std::numeric_limits<std::uint64_t>::max();
constexpr auto kMaxI64 = std::numeric_limits<std::int64_t>::max();
constexpr auto kMinI64 = std::numeric_limits<std::int64_t>::min();

TEST(CheckedMath, GivesNothingOnOverflow) {
  EXPECT_EQ(checked_add<std::uint64_t>(kMaxU64, 0), kMaxU64);
  EXPECT_EQ(checked_add<std::uint64_t>(kMaxU64, 1), std::nullopt);
  EXPECT_EQ(checked_add<std::int64_t>(kMaxI64, 1), std::nullopt);
  EXPECT_EQ(checked_add<std::int64_t>(kMinI64, -1), std::nullopt);
  EXPECT_EQ(checked_mul<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32),
            std::nullopt);
  EXPECT_EQ(checked_mul<std::int64_t>(kMinI64, -1), std::nullopt);
  EXPECT_EQ(checked_mul<std::uint64_t>(kMaxU64, 1), kMaxU64);
}

RC_GTEST_PROP(CheckedMath, AgreesWithWiderArithmetic, (std::int32_t a, std::int32_t b)) {
  const std::int64_t sum = std::int64_t{a} + b;
  const std::int64_t product = std::int64_t{a} * b;
  const auto fits = [](std::int64_t v) {
    return v == static_cast<std::int32_t>(v);
  };
  RC_ASSERT(checked_add(a, b).has_value() == fits(sum));
  RC_ASSERT(checked_mul(a, b).has_value() == fits(product));
  if (fits(sum)) RC_ASSERT(*checked_add(a, b) == sum);
  if (fits(product)) RC_ASSERT(*checked_mul(a, b) == product);
}

RC_GTEST_PROP(CheckedMath, RoundUpIsTheNextMultiple, (std::uint16_t value, std::uint8_t step)) {
  const std::uint32_t multiple = step + 1u;
  const std::uint32_t rounded = round_up<std::uint32_t>(value, multiple);
  RC_ASSERT(rounded % multiple == 0u);
  RC_ASSERT(rounded >= value);
  RC_ASSERT(rounded - value < multiple);
  RC_ASSERT(ceil_div<std::uint32_t>(value, multiple) == rounded / multiple);
}

}  // namespace
}  // namespace tandem::core
