// The elementwise kernels of every instruction set that this machine has: accuracy of the
// elementary functions, and equal bits everywhere.

#include "tandem/kernels/cpu/simd/row_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bits.h"
#include "present_kernels.h"

namespace tandem::kernels::cpu {
namespace {

using test::bits;
using test::present_kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-6F;

std::vector<float> random_values(std::size_t size, unsigned seed, float scale = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(size);
  for (float& v : values) v = normal(random);
  return values;
}

/// Error in units of the last place of the exact value.
double ulps(float actual, double exact) {
  const auto nearest = static_cast<float>(exact);
  const double ulp = std::nextafter(std::abs(nearest), kInfinity) - std::abs(nearest);
  return std::abs(static_cast<double>(actual) - exact) / ulp;
}

class CpuRowKernels : public testing::TestWithParam<const RowKernels*> {
 protected:
  const RowKernels& k() const { return *GetParam(); }
};

TEST_P(CpuRowKernels, ExpIsWithinTwoUlps) {
  std::vector<float> x;
  for (float v = -80.0F; v <= 88.0F; v += 0.00173F) x.push_back(v);
  std::vector<float> y(x.size());
  k().exp(x.data(), static_cast<int>(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(ulps(y[i], std::exp(static_cast<double>(x[i]))), 2.0) << x[i];
  }
}

TEST_P(CpuRowKernels, ExpOfExtremes) {
  std::vector<float> x = {-80.001F, -1e30F, -kInfinity, 0.0F, -0.0F, 88.0F, 1e30F, kInfinity, kNan};
  std::vector<float> y(x.size());
  k().exp(x.data(), static_cast<int>(x.size()), y.data());
  for (const std::size_t below : {0, 1, 2}) EXPECT_EQ(y[below], 0.0F) << x[below];
  for (const std::size_t zero : {3, 4}) EXPECT_EQ(y[zero], 1.0F);
  for (const std::size_t above : {6, 7}) EXPECT_EQ(y[above], y[5]);
  EXPECT_TRUE(std::isnan(y[8]));
}

TEST_P(CpuRowKernels, TanhIsWithinThreeUlps) {
  std::vector<float> x;
  for (float v = -12.0F; v <= 12.0F; v += 0.00037F) x.push_back(v);
  for (const float v : {1e-8F, -1e-20F, 0.0F, 50.0F, -1e9F, kInfinity}) x.push_back(v);
  std::vector<float> y(x.size());
  k().tanh(x.data(), static_cast<int>(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(ulps(y[i], std::tanh(static_cast<double>(x[i]))), 3.0) << x[i];
  }
}

TEST_P(CpuRowKernels, GeluIsRelativelyAccurateInBothTails) {
  std::vector<float> x;
  for (float v = -5.0F; v <= 30.0F; v += 0.0031F) x.push_back(v);
  const std::vector<float> up(x.size(), 1.0F);
  std::vector<float> y(x.size());
  k().gelu_mul(x.data(), up.data(), static_cast<int>(x.size()), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double u = std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
    const double exact = v / (1.0 + std::exp(-2.0 * u));
    ASSERT_NEAR(y[i], exact, 4e-6 * std::abs(exact)) << v;
  }
}

TEST_P(CpuRowKernels, RotationAnglesAreAccurateAtLongContexts) {
  std::vector<float> frequency;
  for (int i = 0; i < 128; ++i) {
    frequency.push_back(std::pow(10000.0F, -2.0F * static_cast<float>(i) / 256.0F));
  }
  const int n = static_cast<int>(frequency.size());
  std::vector<float> cosine(frequency.size());
  std::vector<float> sine(frequency.size());
  for (const std::int32_t position : {0, 1, 2, 3, 100, 511, 4097, 65535, 131072, 262143}) {
    k().rope_table(position, frequency.data(), n, cosine.data(), sine.data());
    for (std::size_t i = 0; i < frequency.size(); ++i) {
      const float angle = static_cast<float>(position) * frequency[i];
      ASSERT_NEAR(cosine[i], std::cos(static_cast<double>(angle)), 2e-7) << position << " " << i;
      ASSERT_NEAR(sine[i], std::sin(static_cast<double>(angle)), 2e-7) << position << " " << i;
    }
  }
}

TEST_P(CpuRowKernels, ArgmaxTakesTheLowestIndexOfTheLargest) {
  for (const int n : {1, 15, 16, 17, 100, 4096}) {
    std::vector<float> x = random_values(static_cast<std::size_t>(n), 3);
    for (const int top : {0, n / 3, n - 1}) {
      std::vector<float> y = x;
      y[static_cast<std::size_t>(top)] = 50.0F;
      y[static_cast<std::size_t>(n - 1)] = 50.0F;
      const RowMax found = k().argmax(y.data(), n);
      EXPECT_EQ(found.index, top) << n;
      EXPECT_EQ(found.value, 50.0F);
    }
  }
  const std::vector<float> none(40, -kInfinity);
  EXPECT_EQ(k().argmax(none.data(), 40).index, 0);
}

TEST_P(CpuRowKernels, RowsThatAreNotFiniteAreToldFromOthers) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::vector<float> x = random_values(100, 4, kLargest / 10);
  x[17] = -kLargest;
  EXPECT_TRUE(k().all_finite(x.data(), 100));
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const std::size_t at : {0, 50, 99}) {
      std::vector<float> y = x;
      y[at] = bad;
      EXPECT_FALSE(k().all_finite(y.data(), 100)) << bad << " at " << at;
    }
  }
}

/// What every kernel makes of random rows of n values.
std::vector<float> results(const RowKernels& k, int n) {
  const auto size = static_cast<std::size_t>(n);
  const std::vector<float> x = random_values(size, 10, 3.0F);
  const std::vector<float> y = random_values(size, 11);
  const std::vector<float> w = random_values(size, 12);
  std::vector<float> all;
  const auto keep = [&](const std::vector<float>& v) {
    all.insert(all.end(), v.begin(), v.end());
  };
  std::vector<float> out(size);
  all.push_back(k.rms_norm(x.data(), w.data(), n, kEps, out.data()));
  keep(out);
  k.rms_norm(x.data(), nullptr, n, kEps, out.data());
  keep(out);
  out = x;
  k.add_rms_norm(y.data(), w.data(), n, kEps, 0.37F, out.data());
  keep(out);
  k.scale(x.data(), 1.7F, n, out.data());
  keep(out);
  k.gelu_mul(x.data(), y.data(), n, out.data());
  keep(out);
  out = x;
  k.ple_combine(y.data(), w.data(), n, kEps, 0.044F, 11.3F, out.data());
  keep(out);
  out = x;
  k.softcap(out.data(), n, 2.0F);
  keep(out);
  k.exp(x.data(), n, out.data());
  keep(out);
  std::vector<float> frequency = w;
  for (float& f : frequency) f = std::abs(f);
  std::vector<float> sine(size);
  k.rope_table(12345, frequency.data(), n, out.data(), sine.data());
  keep(out);
  keep(sine);
  const RowMax top = k.argmax(x.data(), n);
  all.push_back(top.value);
  all.push_back(static_cast<float>(top.index));
  return all;
}

TEST_P(CpuRowKernels, GiveTheBitsOfTheScalarOnes) {
  for (const int n : {1, 7, 15, 16, 17, 31, 32, 96, 128, 512, 1000}) {
    ASSERT_EQ(bits(results(k(), n)), bits(results(*row_kernels("scalar"), n))) << n;
  }
}

TEST_P(CpuRowKernels, RotationGivesTheBitsOfTheScalarOne) {
  for (const int n : {16, 32, 256}) {
    for (const int pairs : {0, 1, n / 8, n / 2}) {
      const auto size = static_cast<std::size_t>(n);
      const std::vector<float> cosine = random_values(size, 21);
      const std::vector<float> sine = random_values(size, 22);
      std::vector<float> expected = random_values(size, 23);
      std::vector<float> actual = expected;
      row_kernels("scalar")->rope(expected.data(), n, cosine.data(), sine.data(), pairs);
      k().rope(actual.data(), n, cosine.data(), sine.data(), pairs);
      ASSERT_EQ(bits(actual), bits(expected)) << n << " " << pairs;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuRowKernels, testing::ValuesIn(present_kernels()),
                         [](const auto& info) { return std::string(info.param->isa); });

}  // namespace
}  // namespace tandem::kernels::cpu
