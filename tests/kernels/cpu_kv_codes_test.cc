// Codes of queries, keys and values on the CPU: the nearest ones, short enough for exact sums,
// where the layouts want them, and the same from every instruction set.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "present_kernels.h"
#include "tandem/kernels/cpu/kv_layout.h"

namespace tandem::kernels::cpu {
namespace {

using test::present_kernels;

constexpr int kTokens[] = {0, 17, 31};

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

std::int64_t square_sum(const std::vector<std::int16_t>& codes) {
  std::int64_t sum = 0;
  for (const std::int64_t code : codes) sum += code * code;
  return sum;
}

/// From values of one size (spread 0) to one that is much larger than the others.
std::vector<float> random_values(int n, float spread, std::mt19937& random) {
  std::vector<float> x(at(n));
  for (float& v : x) {
    v = std::exp(spread * static_cast<float>(random()) * 0x1p-32F);
    if (random() % 2 == 0) v = -v;
  }
  return x;
}

std::vector<std::byte> empty_page(int n, int code_bytes) {
  return std::vector<std::byte>(at(kPageTokens * n * code_bytes) + kPageTokens * kScaleBytes);
}

float scale_of(const std::vector<std::byte>& page, int token) {
  const std::size_t scales = page.size() - kPageTokens * kScaleBytes;
  return reinterpret_cast<const float*>(page.data() + scales)[token];
}

class CpuKvCodes : public testing::TestWithParam<const RowKernels*> {
 protected:
  const RowKernels& k() const { return *GetParam(); }
};

// What keeps every sum of products in 32 bits, with codes as close to their values as they can be.
TEST_P(CpuKvCodes, KeysAreNoLongerThanTheLimit) {
  std::mt19937 random(3);
  for (const int n : {16, 256, 512, 4096}) {
    for (const float spread : {0.0F, 1.0F, 40.0F}) {
      for (const float factor : {1e-25F, 1.0F, 1e18F}) {
        std::vector<float> x = random_values(n, spread, random);
        for (float& v : x) v *= factor;
        std::vector<std::int16_t> codes(x.size());
        const float scale = k().encode_query(x.data(), n, codes.data(), 2);
        ASSERT_LT(square_sum(codes), std::int64_t{1} << 31) << n << " " << spread;
        int largest = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_NEAR(scale * static_cast<float>(codes[i]), x[i], 0.501F * scale) << n << " " << i;
          largest = std::max(largest, std::abs(int{codes[i]}));
        }
        const double length = std::sqrt(static_cast<double>(square_sum(codes)));
        EXPECT_TRUE(largest >= 32699 || length > 45900) << largest << " " << length;
      }
    }
  }
}

TEST_P(CpuKvCodes, ZerosAndValuesThatAreNoNumbers) {
  std::vector<float> x(32, 0.0F);
  std::vector<std::int16_t> codes(32, 7);
  EXPECT_EQ(k().encode_query(x.data(), 32, codes.data(), 2), 0.0F);
  EXPECT_EQ(square_sum(codes), 0);
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const float other : {0.0F, 1.0F, 3e38F}) {
      std::fill(x.begin(), x.end(), other);
      x[17] = bad;
      std::fill(codes.begin(), codes.end(), std::int16_t{7});
      EXPECT_TRUE(std::isnan(k().encode_query(x.data(), 32, codes.data(), 2))) << bad << other;
      EXPECT_EQ(square_sum(codes), 0);
    }
  }
}

TEST_P(CpuKvCodes, KeysOf16BitsLieInPairs) {
  std::mt19937 random(5);
  const std::vector<float> x = random_values(48, 1.0F, random);
  std::vector<std::int16_t> codes(48);
  const float scale = k().encode_query(x.data(), 48, codes.data(), 2);
  std::vector<std::byte> page = empty_page(48, 2);
  for (const int token : kTokens) {
    k().int16.key(x.data(), 48, page.data(), token);
    EXPECT_EQ(scale_of(page, token), scale);
    const auto* stored = reinterpret_cast<const std::int16_t*>(page.data());
    for (int d = 0; d < 48; ++d) {
      EXPECT_EQ(stored[(d / 2 * kPageTokens + token) * 2 + d % 2], codes[at(d)]) << d;
    }
  }
}

// The largest magnitude is 8191, so that the values are the codes.
TEST_P(CpuKvCodes, ValuesOf16BitsAreTheNearestAndTiesAreEven) {
  const std::vector<float> first = {8191.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -4095.5F, -8191.0F};
  const std::vector<int> codes = {8191, 0, 2, 2, 0, -2, -4096, -8191};
  std::vector<float> x(80, 0.0F);  // a chunk and what is left
  std::copy(first.begin(), first.end(), x.begin());
  std::copy(first.begin(), first.end(), x.begin() + 64);
  std::vector<std::byte> page = empty_page(80, 2);
  for (const int token : kTokens) {
    k().int16.value(x.data(), 80, page.data(), token);
    EXPECT_EQ(scale_of(page, token), 1.0F);
    const auto* stored = reinterpret_cast<const std::int16_t*>(page.data());
    for (int d = 0; d < static_cast<int>(codes.size()); ++d) {
      EXPECT_EQ(stored[token / 2 * 128 + d * 2 + token % 2], codes[at(d)]) << d;
      EXPECT_EQ(stored[64 * kPageTokens + token / 2 * 32 + d * 2 + token % 2], codes[at(d)]) << d;
    }
  }
}

// The largest magnitude is 127.
TEST_P(CpuKvCodes, Int8CodesAreTheNearestAndTiesAreEven) {
  std::vector<float> x(32, 0.0F);
  const std::vector<float> first = {127.0F, 0.5F,  1.5F,   2.5F,          -0.5F,  -1.5F,
                                    -2.5F,  63.5F, 126.5F, 0.4999999702F, -127.0F};
  const std::vector<int> codes = {127, 0, 2, 2, 0, -2, -2, 64, 126, 0, -127};
  std::copy(first.begin(), first.end(), x.begin());
  std::vector<std::byte> keys = empty_page(32, 1);
  std::vector<std::byte> values = keys;
  for (const int token : kTokens) {
    k().int8.key(x.data(), 32, keys.data(), token);
    k().int8.value(x.data(), 32, values.data(), token);
    for (int d = 0; d < static_cast<int>(codes.size()); ++d) {
      const int key_at = token / 16 * 512 + d / 4 * 64 + token % 16 * 4 + d % 4;
      const int value_at = token / 4 * 64 + d * 4 + token % 4;
      const auto code = static_cast<std::byte>(codes[at(d)] + kInt8Offset);
      EXPECT_EQ(keys[at(key_at)], code) << d;
      EXPECT_EQ(values[at(value_at)], code) << d;
    }
  }
}

TEST_P(CpuKvCodes, PagesHaveTheBitsOfThePlainCode) {
  std::mt19937 random(4);
  const auto pages = [&](const RowKernels& kernels, const std::vector<float>& x) {
    const int n = static_cast<int>(x.size());
    std::vector<std::vector<std::byte>> all = {empty_page(n, 2), empty_page(n, 2), empty_page(n, 1),
                                               empty_page(n, 1)};
    for (const int token : kTokens) {
      kernels.int16.key(x.data(), n, all[0].data(), token);
      kernels.int16.value(x.data(), n, all[1].data(), token);
      kernels.int8.key(x.data(), n, all[2].data(), token);
      kernels.int8.value(x.data(), n, all[3].data(), token);
    }
    return all;
  };
  for (const int n : {32, 96, 512}) {
    for (const float spread : {1.0F, 10.0F}) {
      const std::vector<float> x = random_values(n, spread, random);
      EXPECT_EQ(pages(k(), x), pages(*row_kernels("scalar"), x)) << n << " " << spread;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuKvCodes, testing::ValuesIn(present_kernels()),
                         [](const auto& info) { return std::string(info.param->isa); });

}  // namespace
}  // namespace tandem::kernels::cpu
