#include "tandem/kernels/kv_shares.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tandem::kernels {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

std::array<std::size_t, kNumAttentionKinds> shares(std::size_t budget, int window,
                                                   std::size_t sliding_page,
                                                   std::size_t full_page) {
  Geometry geometry;
  geometry.kv_memory_bytes = budget;
  geometry.window = window;
  geometry.max_sequences = 32;
  geometry.max_rows = 800;
  geometry.max_context = 65536;
  KvLayout layout;
  layout.page_tokens = 64;
  layout.page_bytes = {sliding_page, full_page};
  return kv_shares(geometry, layout);
}

TEST(KvShares, ASmallModelHasAllWindowsAndALongContext) {
  const auto [sliding, full] = shares(2 * kGiB, 512, 5 * kMiB / 2, kMiB);  // E4B
  EXPECT_GE(full / kMiB, 1024U);                                           // 65,536 tokens
  EXPECT_GE(sliding / (5 * kMiB / 2), 32U * 9);  // 512 tokens of 32 sequences
  EXPECT_EQ(sliding + full, 2 * kGiB);
}

TEST(KvShares, AWindowOfALargeModelAlwaysFits) {
  const auto [sliding, full] = shares(2 * kGiB, 1024, 50 * kMiB, 5 * kMiB);  // 31B
  EXPECT_GE(sliding / (50 * kMiB), 17U + 12);  // a window, and a chunk of 768 rows
  EXPECT_GE(full / (5 * kMiB), 60U);
  const auto [much, rest] = shares(32 * kGiB, 1024, 50 * kMiB, 5 * kMiB);
  EXPECT_GE(much, 24 * kGiB);
  EXPECT_GE(rest / (5 * kMiB), 1024U);
}

TEST(KvShares, OneKindTakesAll) {
  EXPECT_EQ(shares(kGiB, 512, kMiB, 0)[0], kGiB);
  EXPECT_EQ(shares(kGiB, 512, 0, kMiB)[1], kGiB);
}

RC_GTEST_PROP(KvShares, NeverAddUpToAnythingElse, ()) {
  const auto budget = *rc::gen::inRange<std::size_t>(0, 64 * kGiB);
  const auto page = rc::gen::inRange<std::size_t>(1, 64 * kMiB);
  const auto [sliding, full] = shares(budget, *rc::gen::inRange(1, 4096), *page, *page);
  RC_ASSERT(sliding <= budget);
  RC_ASSERT(sliding + full == budget);
}

}  // namespace
}  // namespace tandem::kernels
