#include "tandem/engine/prefix_cache.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tandem/core/check.h"

namespace tandem::engine {

PageKey chain_key(const PageKey& parent, std::span<const TokenId> page_tokens) {
  // The parent's 128 bits enter as seed and as a second pass, which keeps this free of copies.
  const XXH128_hash_t tokens =
      XXH3_128bits_withSeed(page_tokens.data(), page_tokens.size_bytes(), parent.low);
  const std::array<std::uint64_t, 4> chained = {parent.low, parent.high, tokens.low64,
                                                tokens.high64};
  const XXH128_hash_t hash = XXH3_128bits(chained.data(), sizeof(chained));
  return {hash.low64, hash.high64};
}

PrefixCache::PrefixCache(PagePool& pool, int window, std::size_t limit_bytes, bool enabled)
    : pool_(&pool), window_(window), limit_bytes_(limit_bytes), enabled_(enabled) {}

int PrefixCache::first_visible_page(Position position) const {
  return std::max(0, position - window_ + 1) / pool_->page_tokens();
}

PageId PrefixCache::allocate(AttentionKind kind) {
  // Without an id, the other kind's pages do not help.
  if (!pool_->has_id(kind) && !lru_[index_of(kind)].empty()) evict_oldest(kind);
  while (pool_->has_id(kind) && !pool_->can_allocate(kind) && has_idle()) evict_oldest();
  return pool_->allocate(kind);
}

void PrefixCache::release(AttentionKind kind, PageId page, Retention retention) {
  if (pool_->release(kind, page) > 0) return;
  Node* node = node_of(kind, page);
  if (node == nullptr) {
    pool_->free(kind, page);
    return;
  }
  const bool is_cold = retention == Retention::kCold;
  LruList& lru = lru_[index_of(kind)];
  node->lru[index_of(kind)] =
      lru.insert(is_cold ? lru.begin() : lru.end(), IdlePage{page, is_cold ? 0 : ++clock_});
  while (pool_->bytes_idle() > limit_bytes_) evict_oldest();
}

PrefixCache::Match PrefixCache::find(std::span<const PageKey> keys,
                                     std::span<const TokenId> tokens) const {
  const auto page_tokens = static_cast<std::size_t>(pool_->page_tokens());
  constexpr std::size_t kSliding = index_of(AttentionKind::kSliding);
  constexpr std::size_t kFull = index_of(AttentionKind::kFull);
  std::vector<const Node*> chain;
  Match match;
  int sliding_run = 0;  // sliding pages at hand without a gap before the current boundary
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Node* node = find_node(keys[i], i == 0 ? PageKey{} : keys[i - 1],
                                 tokens.subspan(i * page_tokens, page_tokens));
    if (node == nullptr || node->pages[kFull] == kNoPage) break;
    chain.push_back(node);
    sliding_run = node->pages[kSliding] == kNoPage ? 0 : sliding_run + 1;
    const int boundary = static_cast<int>(i) + 1;
    const int first = std::min(boundary, first_visible_page(boundary * pool_->page_tokens()));
    if (boundary - first <= sliding_run) match = {boundary, first, {}};
  }
  for (int i = 0; i < match.num_pages; ++i) {
    for (const AttentionKind kind : kAttentionKinds) {
      if (kind == AttentionKind::kSliding && i < match.first_sliding) continue;
      const PageId page = chain[static_cast<std::size_t>(i)]->pages[index_of(kind)];
      if (pool_->users(kind, page) == 0) ++match.idle[index_of(kind)];
    }
  }
  return match;
}

PageId PrefixCache::acquire(const PageKey& key, AttentionKind kind) {
  const auto it = nodes_.find(key);
  TANDEM_CHECK(it != nodes_.end(), "acquire follows find");
  Node& node = it->second;
  const PageId page = node.pages[index_of(kind)];
  if (auto& position = node.lru[index_of(kind)]; position.has_value()) {
    lru_[index_of(kind)].erase(*position);
    position.reset();
  }
  pool_->retain(kind, page);
  return page;
}

void PrefixCache::insert(const PageKey& key, const PageKey& parent,
                         std::span<const TokenId> page_tokens, AttentionKind kind, PageId page) {
  if (!enabled_ || node_of(kind, page) != nullptr) return;
  const auto [it, is_new] = nodes_.try_emplace(key);
  Node& node = it->second;
  if (is_new) {
    node.key = key;
    node.parent = parent;
    node.tokens.assign(page_tokens.begin(), page_tokens.end());
  } else if (node.parent != parent || !std::ranges::equal(node.tokens, page_tokens)) {
    return;  // a collision: the older text keeps the key
  }
  if (node.pages[index_of(kind)] != kNoPage) return;
  node.pages[index_of(kind)] = page;
  set_node(kind, page, &node);
}

const PrefixCache::Node* PrefixCache::find_node(const PageKey& key, const PageKey& parent,
                                                std::span<const TokenId> page_tokens) const {
  const auto it = nodes_.find(key);
  if (it == nodes_.end()) return nullptr;
  const Node& node = it->second;
  return node.parent == parent && std::ranges::equal(node.tokens, page_tokens) ? &node : nullptr;
}

PrefixCache::Node* PrefixCache::node_of(AttentionKind kind, PageId page) const {
  const std::vector<Node*>& nodes = node_of_page_[index_of(kind)];
  const auto i = static_cast<std::size_t>(page);
  return i < nodes.size() ? nodes[i] : nullptr;
}

void PrefixCache::set_node(AttentionKind kind, PageId page, Node* node) {
  std::vector<Node*>& nodes = node_of_page_[index_of(kind)];
  const auto i = static_cast<std::size_t>(page);
  if (i >= nodes.size()) nodes.resize(i + 1, nullptr);
  nodes[i] = node;
}

bool PrefixCache::has_idle() const {
  return std::ranges::any_of(lru_, [](const LruList& lru) { return !lru.empty(); });
}

void PrefixCache::evict_oldest() {
  AttentionKind oldest = AttentionKind::kSliding;
  auto since = std::numeric_limits<std::uint64_t>::max();
  for (const AttentionKind kind : kAttentionKinds) {
    const LruList& lru = lru_[index_of(kind)];
    if (lru.empty() || lru.front().since >= since) continue;
    oldest = kind;
    since = lru.front().since;
  }
  evict_oldest(oldest);
}

void PrefixCache::evict_oldest(AttentionKind kind) {
  LruList& lru = lru_[index_of(kind)];
  const PageId page = lru.front().page;
  lru.pop_front();
  Node* node = node_of(kind, page);
  set_node(kind, page, nullptr);
  node->lru[index_of(kind)].reset();
  node->pages[index_of(kind)] = kNoPage;
  pool_->free(kind, page);
  const PageKey key = node->key;  // the argument of erase must not live in what it erases
  if (std::ranges::all_of(node->pages, [](PageId page) { return page == kNoPage; })) {
    nodes_.erase(key);
  }
}

core::Status PrefixCache::check() const {
  std::size_t idle_bytes = 0;
  for (const AttentionKind kind : kAttentionKinds) {
    for (const IdlePage& idle : lru_[index_of(kind)]) {
      const Node* node = node_of(kind, idle.page);
      if (node == nullptr || !node->lru[index_of(kind)].has_value() ||
          pool_->users(kind, idle.page) != 0) {
        return core::internal_error(
            fmt::format("page {} of kind {} is listed but not idle", idle.page, index_of(kind)));
      }
      idle_bytes += pool_->page_bytes(kind);
    }
  }
  if (idle_bytes != pool_->bytes_idle() || idle_bytes > limit_bytes_) {
    return core::internal_error(fmt::format("{} idle bytes are listed, {} exist, {} are allowed",
                                            idle_bytes, pool_->bytes_idle(), limit_bytes_));
  }
  for (const auto& [key, node] : nodes_) {
    for (const AttentionKind kind : kAttentionKinds) {
      const PageId page = node.pages[index_of(kind)];
      if (page != kNoPage && node_of(kind, page) != &node) {
        return core::internal_error(fmt::format("page {} is not indexed by its node", page));
      }
    }
  }
  return {};
}

}  // namespace tandem::engine
