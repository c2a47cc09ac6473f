#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/engine/page_pool.h"

namespace tandem::engine {

/// Identity of a full page: a hash of its tokens and of the key of the page before it, so that it
/// stands for the whole text up to the page's end.
struct PageKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const PageKey&) const = default;
};

/// XXH3-128 of parent and tokens. The first page of a sequence has the parent PageKey{}.
PageKey chain_key(const PageKey& parent, std::span<const TokenId> page_tokens);

/// How long a page that lost its last user should be kept.
enum class Retention : std::uint8_t {
  kRecent,  ///< least recently used goes first
  kCold,    ///< goes before all others: fills room that nobody else wants
};

/// Full pages by the text they stand for, kept for reuse, least recently used first out.
///
/// A prompt can start at the page boundary p if the full pages of [0, p) are here and the sliding
/// pages that a row at p or later sees, keys j > p - W. Pages that a sequence holds are indexed,
/// too, so that running sequences share them. Idle pages are bounded by `limit_bytes` and are
/// evicted whenever allocate() needs room. All page traffic of the engine goes through here.
/// Thread: engine.
class PrefixCache {
 public:
  /// `pool` must outlive the cache. window: W. Without `enabled` nothing is ever kept.
  PrefixCache(PagePool& pool, int window, std::size_t limit_bytes, bool enabled);

  /// A page with one user, evicting idle pages as needed; kNoPage if all pages are in use.
  PageId allocate(AttentionKind kind);
  /// Takes one user away; a page without users is kept if it is indexed, else freed.
  void release(AttentionKind kind, PageId page, Retention retention);

  /// A reusable prefix: full pages [0, num_pages) and sliding pages [first_sliding, num_pages).
  struct Match {
    int num_pages = 0;
    int first_sliding = 0;
    PageCounts idle = {};  ///< of these pages, those that have no user now
  };
  /// Longest reusable prefix of at most `keys.size()` pages. keys: chain keys; tokens: the text
  /// itself, compared with what is stored. Changes nothing.
  Match find(std::span<const PageKey> keys, std::span<const TokenId> tokens) const;
  /// Adds a user to the page with this key, which the last find() returned.
  PageId acquire(const PageKey& key, AttentionKind kind);

  /// Indexes a full page that a table holds; an equal page that is already indexed stays instead.
  void insert(const PageKey& key, const PageKey& parent, std::span<const TokenId> page_tokens,
              AttentionKind kind, PageId page);

  /// First page that a row at `position` or later can see in the sliding layers.
  int first_visible_page(Position position) const;

  bool enabled() const { return enabled_; }
  /// Integrity: every idle page is indexed and listed once, and the limit holds.
  core::Status check() const;

 private:
  /// An idle page, and when it became idle: at 0 where it is cold.
  struct IdlePage {
    PageId page = kNoPage;
    std::uint64_t since = 0;
  };
  using LruList = std::list<IdlePage>;
  struct Node {
    PageKey key;
    PageKey parent;
    std::vector<TokenId> tokens;
    std::array<PageId, kernels::kNumAttentionKinds> pages = {kNoPage, kNoPage};
    std::array<std::optional<LruList::iterator>, kernels::kNumAttentionKinds> lru;  // while idle
  };
  struct KeyHash {
    std::size_t operator()(const PageKey& key) const { return static_cast<std::size_t>(key.low); }
  };

  const Node* find_node(const PageKey& key, const PageKey& parent,
                        std::span<const TokenId> page_tokens) const;
  Node* node_of(AttentionKind kind, PageId page) const;
  void set_node(AttentionKind kind, PageId page, Node* node);
  bool has_idle() const;
  /// Evicts the oldest idle page of either kind, or of this one.
  void evict_oldest();
  void evict_oldest(AttentionKind kind);

  PagePool* pool_;
  int window_;
  std::size_t limit_bytes_;
  bool enabled_;
  std::unordered_map<PageKey, Node, KeyHash> nodes_;
  std::array<std::vector<Node*>, kernels::kNumAttentionKinds> node_of_page_;
  std::array<LruList, kernels::kNumAttentionKinds> lru_;  // idle pages, next to be evicted first
  std::uint64_t clock_ = 0;
};

}  // namespace tandem::engine
