// The reference's mathematics against cases worked out by hand.

#include "tandem/kernels/reference/reference_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tandem::kernels::reference {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

TEST(Dot, AddsSixteenPartialSumsInTheDocumentedOrder) {
  for (const std::size_t size : {0U, 1U, 15U, 16U, 17U, 33U, 100U}) {
    std::vector<float> a(size), b(size);
    std::vector<float> sums(16);
    for (std::size_t i = 0; i < size; ++i) {
      a[i] = 1.0F / (1.0F + static_cast<float>(i));
      b[i] = 1.0F - 0.37F * static_cast<float>(i % 5);
      sums[i % 16] += a[i] * b[i];
    }
    for (const std::size_t half : {8U, 4U, 2U, 1U}) {
      for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    }
    EXPECT_EQ(dot(a, b), sums[0]) << size;
  }
}

TEST(Linear, MultipliesRowMajorMatrices) {
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};  // [3, 2]
  const std::vector<float> x = {1, 10, 2, 20};      // [2, 2]
  std::vector<float> out(6);
  linear({w.data(), 3, 2}, x.data(), 2, out.data());
  EXPECT_THAT(out, ElementsAre(21, 43, 65, 42, 86, 130));
}

TEST(RmsNormalize, DividesByTheRootOfTheMeanSquareAndTakesTheWeightAsItIs) {
  std::vector<float> x = {3, 4};  // mean square 12.5
  rms_normalize(x, {}, 0.0F);
  EXPECT_THAT(x, ElementsAre(FloatNear(0.8485281F, 1e-6F), FloatNear(1.1313708F, 1e-6F)));
  x = {3, 4};
  const std::vector<float> weight = {2, -1};
  rms_normalize(x, weight, 3.5F);  // sqrt(16) = 4: eps is inside the root
  EXPECT_THAT(x, ElementsAre(FloatNear(1.5F, 1e-6F), FloatNear(-1.0F, 1e-6F)));
}

TEST(Rotate, TurnsPairsHalfAHeadApartAndLeavesTheRest) {
  std::vector<float> x = {1, 2, 3, 4};
  const std::vector<float> frequencies = {0.5F, 0.0F};
  rotate(x, frequencies, 2);
  const float c = std::cos(1.0F), s = std::sin(1.0F);
  EXPECT_THAT(x, ElementsAre(FloatNear(c - 3 * s, 1e-6F), 2, FloatNear(3 * c + s, 1e-6F), 4));
}

TEST(Rotate, ComputesTheAngleInF32) {
  std::vector<float> x = {1, 0};
  const std::vector<float> frequencies = {0.1F};
  rotate(x, frequencies, 262143);
  const float angle = 262143.0F * 0.1F;
  EXPECT_EQ(x[0], std::cos(angle));
  EXPECT_EQ(x[1], std::sin(angle));
}

TEST(Rotate, KeepsScoresAFunctionOfTheDistance) {
  const std::vector<float> frequencies = {1.0F, 0.1F};
  const auto score = [&](Position q_position, Position k_position) {
    std::vector<float> q = {1, -2, 0.5F, 3}, k = {0.3F, 1, -1, 2};
    rotate(q, frequencies, q_position);
    rotate(k, frequencies, k_position);
    return dot(q, k);
  };
  EXPECT_NEAR(score(7, 4), score(103, 100), 1e-4);
  EXPECT_GT(std::abs(score(7, 4) - score(7, 5)), 0.1);
}

TEST(GeluTanh, MatchesKnownValues) {
  EXPECT_EQ(gelu_tanh(0.0F), 0.0F);
  EXPECT_NEAR(gelu_tanh(1.0F), 0.8411920F, 1e-6);
  EXPECT_NEAR(gelu_tanh(-1.0F), -0.1588080F, 1e-6);
  EXPECT_NEAR(gelu_tanh(10.0F), 10.0F, 1e-6);
  EXPECT_NEAR(gelu_tanh(-10.0F), 0.0F, 1e-6);
}

TEST(Softcap, BendsTowardsTheCap) {
  std::vector<float> x = {0.0F, 45.0F, -1000.0F};
  softcap(x, 30.0F);
  EXPECT_THAT(x, ElementsAre(0.0F, FloatNear(27.154449F, 1e-4F), -30.0F));
}

class AttendTest : public ::testing::Test {
 protected:
  /// Two pages of 4 positions; keys k_j = (j, 0), values v_j = (1, j).
  void SetUp() override {
    Geometry geometry;
    geometry.kv_layers = {{AttentionKind::kFull, 1, 2}};
    geometry.kv_memory_bytes = 1 << 16;
    ASSERT_TRUE(kv_.configure(geometry, 4, sizeof(float)).ok());
    cache_ = {&kv_, 0, 0, pages_, 2};
    for (Position j = 0; j < 8; ++j) {
      cache_.key(j)[0] = static_cast<float>(j);
      cache_.value(j)[0] = 1.0F;
      cache_.value(j)[1] = static_cast<float>(j);
    }
  }

  std::vector<float> attend_to(std::vector<float> q, Position begin, Position end) {
    std::vector<float> out(2, -1.0F), scores;
    attend(q, cache_, begin, end, scores, out);
    return out;
  }

  HostKv kv_;
  std::vector<PageId> pages_ = {5, 2};
  HeadCache cache_;
};

TEST_F(AttendTest, WeighsValuesByTheSoftmaxOfUnscaledScores) {
  // Scores ln 2 * j: weights 1 : 2 : 4 over positions 3, 4, 5, across a page's edge.
  const std::vector<float> out = attend_to({std::log(2.0F), 9.0F}, 3, 6);
  EXPECT_NEAR(out[0], 1.0F, 1e-6);
  EXPECT_NEAR(out[1], (3.0F + 2 * 4.0F + 4 * 5.0F) / 7.0F, 1e-5);
}

TEST_F(AttendTest, SurvivesScoresBeyondTheRangeOfExp) {
  EXPECT_NEAR(attend_to({1000.0F, 0.0F}, 0, 8)[1], 7.0F, 1e-6);
  EXPECT_NEAR(attend_to({-1000.0F, 0.0F}, 0, 8)[1], 0.0F, 1e-6);
}

TEST_F(AttendTest, GivesZerosWithoutKeys) {
  EXPECT_THAT(attend_to({1.0F, 0.0F}, 4, 4), ElementsAre(0.0F, 0.0F));
}

TEST(AllFinite, SeesInfinityAndNaN) {
  std::vector<float> x(100, 1.0F);
  EXPECT_TRUE(all_finite(x));
  x[77] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(all_finite(x));
  x[77] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(all_finite(x));
}

TEST(HostKv, GivesEveryTileMemoryOfItsOwn) {
  Geometry geometry;
  geometry.kv_layers = {{AttentionKind::kSliding, 2, 8},
                        {AttentionKind::kFull, 1, 16},
                        {AttentionKind::kSliding, 2, 8}};
  geometry.kv_memory_bytes = 1 << 16;
  HostKv kv;
  ASSERT_TRUE(kv.configure(geometry, 4, sizeof(float)).ok());
  EXPECT_EQ(kv.layout().page_tokens, 4);
  EXPECT_EQ(kv.layout().page_bytes[0], 2U * 2 * 2 * 4 * 8 * sizeof(float));
  EXPECT_EQ(kv.layout().page_bytes[1], 2U * 1 * 4 * 16 * sizeof(float));
  EXPECT_EQ(kv.layout().max_pages[0], (1 << 16) / 1024);

  float tag = 1.0F;
  const auto visit = [&](auto&& use) {
    for (PageId page = 0; page < 3; ++page) {
      for (const int layer : {0, 1, 2}) {
        const auto size = static_cast<std::size_t>(layer == 1 ? 4 * 16 : 4 * 8);
        for (int head = 0; head < (layer == 1 ? 1 : 2); ++head) {
          use(std::span<float>(kv.keys<float>(layer, page, head), size));
          use(std::span<float>(kv.values<float>(layer, page, head), size));
        }
      }
    }
  };
  visit([&](std::span<float> tile) {
    for (float& x : tile) x = tag;
    tag += 1.0F;
  });
  tag = 1.0F;
  visit([&](std::span<float> tile) {
    for (const float x : tile) ASSERT_EQ(x, tag);
    tag += 1.0F;
  });
}

TEST(HostKv, RefusesABudgetBelowOnePage) {
  Geometry geometry;
  geometry.kv_layers = {{AttentionKind::kFull, 8, 512}};
  geometry.kv_memory_bytes = 1000;
  HostKv kv;
  const core::Status status = kv.configure(geometry, 32, sizeof(float));
  EXPECT_EQ(status.code(), core::Code::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("--kv-memory"));
}

}  // namespace
}  // namespace tandem::kernels::reference
