#include "tandem/engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tandem::engine {
namespace {

constexpr AttentionKind kSliding = AttentionKind::kSliding;
constexpr AttentionKind kFull = AttentionKind::kFull;

kernels::KvLayout layout() {
  kernels::KvLayout layout;
  layout.page_tokens = 4;
  layout.page_bytes = {30, 20};
  layout.max_pages = {100, 100};
  return layout;
}

struct Text {
  std::vector<TokenId> tokens;
  std::vector<PageKey> keys;
};

Text text_of(int num_pages, TokenId first = 0) {
  Text text;
  text.tokens.resize(static_cast<std::size_t>(num_pages) * 4);
  std::iota(text.tokens.begin(), text.tokens.end(), first);
  PageKey parent;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_pages); ++i) {
    parent = chain_key(parent, std::span(text.tokens).subspan(i * 4, 4));
    text.keys.push_back(parent);
  }
  return text;
}

/// Allocates and indexes pages [first, last) of one kind.
std::vector<PageId> fill(PrefixCache& cache, const Text& text, AttentionKind kind, int first,
                         int last) {
  std::vector<PageId> pages;
  for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
    pages.push_back(cache.allocate(kind));
    cache.insert(text.keys[i], i == 0 ? PageKey{} : text.keys[i - 1],
                 std::span(text.tokens).subspan(i * 4, 4), kind, pages.back());
  }
  return pages;
}

TEST(PagePool, ReusesTheLastFreedIdAndTakesNewOnesLast) {
  PagePool pool(layout(), 1000);
  EXPECT_EQ(pool.allocate(kFull), 0);
  EXPECT_EQ(pool.allocate(kFull), 1);
  EXPECT_EQ(pool.allocate(kFull), 2);
  for (const PageId page : {0, 1}) {
    EXPECT_EQ(pool.release(kFull, page), 0);
    pool.free(kFull, page);
  }
  EXPECT_EQ(pool.allocate(kFull), 1);
  EXPECT_EQ(pool.allocate(kFull), 0);
  EXPECT_EQ(pool.allocate(kFull), 3);
  EXPECT_EQ(pool.bytes_used(), 80U);
}

TEST(PagePool, BothKindsShareOneBudget) {
  PagePool pool(layout(), 100);
  for (int i = 0; i < 2; ++i) EXPECT_NE(pool.allocate(kSliding), kNoPage);  // 60
  EXPECT_NE(pool.allocate(kFull), kNoPage);
  EXPECT_NE(pool.allocate(kFull), kNoPage);  // 100
  EXPECT_EQ(pool.allocate(kFull), kNoPage);
  EXPECT_EQ(pool.allocate(kSliding), kNoPage);
}

TEST(PagePool, CheckFindsACountThatNoTableHolds) {
  PagePool pool(layout(), 1000);
  const PageId page = pool.allocate(kFull);
  EXPECT_TRUE(pool.check({{{}, {1}}}).ok());
  pool.retain(kFull, page);
  EXPECT_FALSE(pool.check({{{}, {1}}}).ok());
  EXPECT_TRUE(pool.check({{{}, {2}}}).ok());
}

TEST(PrefixCache, KeysDependOnTheWholeTextBefore) {
  const Text a = text_of(3);
  Text b = text_of(3);
  b.tokens[0] = 77;
  const PageKey other = chain_key({}, std::span(b.tokens).first(4));
  EXPECT_NE(other, a.keys[0]);
  EXPECT_NE(chain_key(other, std::span(a.tokens).subspan(4, 4)), a.keys[1]);
  EXPECT_EQ(chain_key(a.keys[0], std::span(a.tokens).subspan(4, 4)), a.keys[1]);
}

TEST(PrefixCache, AHitNeedsTheFullPagesAndTheWindow) {
  PagePool pool(layout(), 1000);
  PrefixCache cache(pool, 8, 1000, true);  // W = 8: a row at 16 sees keys from 9, pages 2 and 3
  const Text text = text_of(6);
  fill(cache, text, kFull, 0, 6);
  EXPECT_EQ(cache.find(text.keys, text.tokens).num_pages, 0);
  fill(cache, text, kSliding, 2, 4);
  PrefixCache::Match match = cache.find(text.keys, text.tokens);
  EXPECT_EQ(match.num_pages, 4);
  EXPECT_EQ(match.first_sliding, 2);
  fill(cache, text, kSliding, 5, 6);
  EXPECT_EQ(cache.find(text.keys, text.tokens).num_pages, 4);  // page 4 is a gap
  fill(cache, text, kSliding, 4, 5);
  EXPECT_EQ(cache.find(text.keys, text.tokens).num_pages, 6);
  EXPECT_EQ(cache.find(std::span(text.keys).first(5), text.tokens).num_pages, 5);
  EXPECT_TRUE(cache.check().ok());
}

TEST(PrefixCache, EqualKeysOfOtherTokensDoNotMatch) {
  PagePool pool(layout(), 1000);
  PrefixCache cache(pool, 8, 1000, true);
  const Text text = text_of(1);
  fill(cache, text, kFull, 0, 1);
  fill(cache, text, kSliding, 0, 1);
  Text collision = text_of(1, 50);
  collision.keys = text.keys;
  EXPECT_EQ(cache.find(collision.keys, collision.tokens).num_pages, 0);
  const PageId page = fill(cache, collision, kFull, 0, 1)[0];
  EXPECT_EQ(cache.find(text.keys, text.tokens).num_pages, 1);
  cache.release(kFull, page, Retention::kRecent);  // was not indexed: freed
  EXPECT_EQ(pool.bytes_idle(), 0U);
}

TEST(PrefixCache, KeepsIdlePagesUpToItsLimitOldestFirstOut) {
  PagePool pool(layout(), 1000);
  PrefixCache cache(pool, 4, 100, true);
  const Text a = text_of(2);
  const Text b = text_of(2, 100);
  const auto release = [&](const Text& text) {
    const auto full = fill(cache, text, kFull, 0, 2);
    const auto sliding = fill(cache, text, kSliding, 0, 2);
    for (const std::size_t i : {1U, 0U}) {
      cache.release(kFull, full[i], Retention::kRecent);
      cache.release(kSliding, sliding[i], Retention::kRecent);
    }
  };
  release(a);
  EXPECT_EQ(pool.bytes_idle(), 100U);
  EXPECT_EQ(cache.find(a.keys, a.tokens).num_pages, 2);
  EXPECT_EQ(cache.find(a.keys, a.tokens).idle, (PageCounts{1, 2}));
  release(b);
  EXPECT_EQ(pool.bytes_idle(), 100U);
  EXPECT_EQ(cache.find(a.keys, a.tokens).num_pages, 0);
  EXPECT_EQ(cache.find(b.keys, b.tokens).num_pages, 2);
  EXPECT_TRUE(cache.check().ok());
}

TEST(PrefixCache, ColdPagesLeaveFirst) {
  PagePool pool(layout(), 1000);
  PrefixCache cache(pool, 4, 60, true);
  const Text text = text_of(3);
  const auto pages = fill(cache, text, kFull, 0, 3);
  cache.release(kFull, pages[0], Retention::kRecent);
  cache.release(kFull, pages[1], Retention::kCold);
  cache.release(kFull, pages[2], Retention::kRecent);
  const PageId page = fill(cache, text_of(1, 90), kFull, 0, 1)[0];
  cache.release(kFull, page, Retention::kRecent);
  EXPECT_EQ(pool.users(kFull, pages[0]), 0);   // idle
  EXPECT_EQ(pool.users(kFull, pages[1]), -1);  // free
}

TEST(PrefixCache, SequencesThatNeedPagesEvict) {
  PagePool pool(layout(), 60);
  PrefixCache cache(pool, 4, 60, true);
  const Text text = text_of(3);
  for (const PageId page : fill(cache, text, kFull, 0, 3)) {
    cache.release(kFull, page, Retention::kRecent);
  }
  EXPECT_EQ(pool.bytes_idle(), 60U);
  EXPECT_NE(cache.allocate(kSliding), kNoPage);  // 30 bytes: two full pages go
  EXPECT_EQ(pool.bytes_idle(), 20U);
  EXPECT_NE(cache.allocate(kSliding), kNoPage);
  EXPECT_EQ(cache.allocate(kFull), kNoPage);
  EXPECT_TRUE(cache.check().ok());
}

TEST(PrefixCache, AcquiredPagesAreSharedAndNotEvicted) {
  PagePool pool(layout(), 100);
  PrefixCache cache(pool, 4, 100, true);
  const Text text = text_of(1);
  cache.release(kFull, fill(cache, text, kFull, 0, 1)[0], Retention::kRecent);
  cache.release(kSliding, fill(cache, text, kSliding, 0, 1)[0], Retention::kRecent);
  const PageId page = cache.acquire(text.keys[0], kFull);
  EXPECT_EQ(cache.acquire(text.keys[0], kFull), page);
  EXPECT_EQ(pool.users(kFull, page), 2);
  while (cache.allocate(kFull) != kNoPage) {
  }
  EXPECT_EQ(pool.users(kFull, page), 2);
  cache.release(kFull, page, Retention::kRecent);
  cache.release(kFull, page, Retention::kRecent);
  EXPECT_EQ(pool.users(kFull, page), 0);
  EXPECT_TRUE(cache.check().ok());
}

TEST(PrefixCache, SwitchedOffKeepsNothing) {
  PagePool pool(layout(), 100);
  PrefixCache cache(pool, 4, 100, false);
  const Text text = text_of(1);
  cache.release(kFull, fill(cache, text, kFull, 0, 1)[0], Retention::kRecent);
  EXPECT_EQ(pool.bytes_idle(), 0U);
  EXPECT_EQ(cache.find(text.keys, text.tokens).num_pages, 0);
}

}  // namespace
}  // namespace tandem::engine
