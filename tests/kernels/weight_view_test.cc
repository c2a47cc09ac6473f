// Weights with scales: the formula of WeightView, its cuts, and what it refuses.

#include "tandem/kernels/weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "scaled_weights.h"

namespace tandem::kernels {
namespace {

using core::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

core::TensorView view_of(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, 2, {rows, cols, 1, 1}};
}

std::vector<float> row_of(const WeightView& view, std::int64_t n) {
  std::vector<float> row(static_cast<std::size_t>(view.cols()));
  view.values(n, row);
  return row;
}

class ScaledByBlocks : public ::testing::Test {
 protected:
  const std::vector<float> values_ = {1, 2, 3, 4, 5, 6, 7, 8, 9};  // [3, 3]
  const std::vector<float> scales_ = {1, 10, 100, 1000};           // blocks of [2, 2]
  WeightView view_ = [this] {
    WeightView v = view_of(values_, 3, 3);
    v.scales = view_of(scales_, 2, 2);
    v.scale_rows = v.scale_cols = 2;
    v.factor = 0.5F;
    return v;
  }();
};

TEST_F(ScaledByBlocks, TakeTheScaleOfTheirBlockAndTheFactor) {
  ASSERT_TRUE(view_.check("w").ok());
  EXPECT_THAT(row_of(view_, 0), ElementsAre(0.5F, 1, 15));
  EXPECT_THAT(row_of(view_, 1), ElementsAre(2, 2.5F, 30));
  EXPECT_THAT(row_of(view_, 2), ElementsAre(350, 400, 4500));
}

TEST_F(ScaledByBlocks, ASliceKeepsTheScalesOfItsRows) {
  const WeightView last = view_.slice(2, 1);
  EXPECT_TRUE(last.check("w").ok());
  EXPECT_EQ(last.rows(), 1);
  EXPECT_EQ(row_of(last, 0), row_of(view_, 2));
  EXPECT_EQ(row_of(view_.slice(0, 2), 1), row_of(view_, 1));
}

TEST_F(ScaledByBlocks, ASliceMayDivideABlock) {
  const WeightView part = view_.slice(1, 2);
  EXPECT_TRUE(part.check("w").ok());
  EXPECT_EQ(row_of(part, 0), row_of(view_, 1));
  EXPECT_EQ(row_of(part, 1), row_of(view_, 2));
  EXPECT_EQ(row_of(part.slice(1, 1), 0), row_of(view_, 2));
}

TEST_F(ScaledByBlocks, AScaleThatSpansTheWeightSpansEverySlice) {
  view_.scales = view_of(scales_, 1, 1);
  view_.scale_rows = view_.scale_cols = 3;
  EXPECT_EQ(row_of(view_.slice(1, 2), 1), row_of(view_, 2));
}

TEST_F(ScaledByBlocks, RefusesAnotherNumberOfScales) {
  view_.scale_cols = 1;
  const core::Status status = view_.check("blk.0.w");
  EXPECT_EQ(status.code(), core::Code::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor 'blk.0.w' of 3 x 3 values has 4 scales, expected 6"));
}

TEST_F(ScaledByBlocks, RefusesAFactorThatIsNotFinite) {
  view_.factor = std::numeric_limits<float>::infinity();
  EXPECT_EQ(view_.check("w").code(), core::Code::kDataLoss);
}

TEST_F(ScaledByBlocks, RefusesTypesWithoutFloatValues) {
  WeightView ints = view_;
  ints.tensor.dtype = DType::kI32;
  EXPECT_EQ(ints.check("w").code(), core::Code::kUnimplemented);
  view_.scales.dtype = DType::kI8;
  EXPECT_EQ(view_.check("w").code(), core::Code::kUnimplemented);
}

TEST(E2m1Pairs, HoldTheFirstColumnInTheLowHalf) {
  const std::vector<std::byte> codes = {std::byte{0x71}, std::byte{0xA8}};  // 0.5 6, -0 -1
  const std::vector<std::byte> scales = {std::byte{0x38}};                  // 1.0
  WeightView view;
  view.tensor = {codes.data(), DType::kU8, 2, {1, 2, 1, 1}};
  EXPECT_EQ(view.check("w").code(), core::Code::kUnimplemented) << "bytes without scales";
  view.scales = {scales.data(), DType::kF8E4M3, 2, {1, 1, 1, 1}};
  view.scale_rows = 1;
  view.scale_cols = 16;
  view.factor = 2.0F;
  ASSERT_TRUE(view.check("w").ok());
  EXPECT_EQ(view.cols(), 4);
  EXPECT_THAT(row_of(view, 0), ElementsAre(1, 12, 0, -2));
}

TEST(TokenIds, AreRefusedOutsideTheVocabulary) {
  const std::vector<std::int64_t> ids = {2, 0, 3, 1};
  WeightView view;
  view.tensor = {reinterpret_cast<const std::byte*>(ids.data()), DType::kI64, 1, {4, 1, 1, 1}};
  EXPECT_THAT(read_token_ids(view, 4, "order").value(), ElementsAre(2, 0, 3, 1));
  const auto outside = read_token_ids(view, 3, "order");
  EXPECT_EQ(outside.status().code(), core::Code::kDataLoss);
  EXPECT_THAT(std::string(outside.status().message()), HasSubstr("'order' holds token 3"));
  view.tensor.dtype = DType::kF32;
  EXPECT_EQ(read_token_ids(view, 4, "order").status().code(), core::Code::kUnimplemented);
}

}  // namespace
}  // namespace tandem::kernels
