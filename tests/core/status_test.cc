#include "tandem/core/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace tandem::core {
namespace {

Status fail_if(bool fail) {
  return fail ? data_loss("byte 7 is wrong") : Status();
}

Status try_twice(bool first, bool second, int* reached) {
  TANDEM_TRY(fail_if(first));
  ++*reached;
  TANDEM_TRY(fail_if(second));
  ++*reached;
  return {};
}

Result<std::unique_ptr<int>> boxed(int value) {
  if (value < 0) return invalid_argument("negative");
  return std::make_unique<int>(value);
}

Result<int> sum_of(int a, int b) {
  TANDEM_ASSIGN(const std::unique_ptr<int> left, boxed(a));
  TANDEM_ASSIGN(const std::unique_ptr<int> right, boxed(b));
  return *left + *right;
}

TEST(Status, IsOkByDefault) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_TRUE(status.message().empty());
}

TEST(Status, ContextIsPutBeforeTheMessageOfAFailure) {
  const Status status = not_found("no tensor x").with_context("model.gguf");
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.message(), "model.gguf: no tensor x");
  EXPECT_TRUE(Status().with_context("model.gguf").ok());
  EXPECT_TRUE(Status().with_context("model.gguf").message().empty());
}

TEST(Status, TryLeavesAtTheFirstFailure) {
  int reached = 0;
  EXPECT_EQ(try_twice(true, true, &reached).code(), Code::kDataLoss);
  EXPECT_EQ(reached, 0);
  EXPECT_FALSE(try_twice(false, true, &reached).ok());
  EXPECT_EQ(reached, 1);
  EXPECT_TRUE(try_twice(false, false, &reached).ok());
  EXPECT_EQ(reached, 3);
}

TEST(Result, HoldsAValueOrTheReasonForNone) {
  const Result<int> good = sum_of(2, 3);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 5);
  EXPECT_TRUE(good.status().ok());
  const Result<int> bad = sum_of(2, -3);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(), "negative");
}

TEST(Result, MovesItsValueOut) {
  std::unique_ptr<int> value = boxed(4).value();
  EXPECT_EQ(*value, 4);
  auto result = boxed(5);
  *result.value() = 6;
  EXPECT_EQ(**result, 6);
}

TEST(ResultDeathTest, ValueOfAFailureAbortsWithItsMessage) {
  EXPECT_DEATH(static_cast<void>(boxed(-1).value()), "negative");
}

TEST(ResultDeathTest, AnOkStatusIsNoResult) {
  EXPECT_DEATH(static_cast<void>(Result<int>(Status())), "no value");
}

}  // namespace
}  // namespace tandem::core
