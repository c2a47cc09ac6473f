#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/backend.h"

namespace tandem::engine {

using kernels::AttentionKind;
using kernels::kAttentionKinds;

/// Numbers of pages by kind.
using PageCounts = std::array<int, kernels::kNumAttentionKinds>;

inline PageCounts operator+(PageCounts sum, const PageCounts& more) {
  for (std::size_t kind = 0; kind < sum.size(); ++kind) sum[kind] += more[kind];
  return sum;
}

/// KV pages of both kinds under one byte budget, and each kind within its max_pages: ids and user
/// counts, no contents. A page is free, in use (held by at least one page table) or idle
/// (allocated, but without a user: kept by the prefix cache). Freed ids are reused last in, first
/// out and new ids are taken only when none is free, so that the memory ever touched stays close to
/// the largest need. Thread: engine.
class PagePool {
 public:
  PagePool(const kernels::KvLayout& layout, std::size_t budget_bytes);

  int page_tokens() const { return layout_.page_tokens; }
  std::size_t page_bytes(AttentionKind kind) const { return layout_.page_bytes[index_of(kind)]; }

  /// Whether one more page of `kind` fits; idle pages count as taken.
  bool can_allocate(AttentionKind kind) const { return has_id(kind) && has_bytes(kind); }
  /// Whether a page of `kind` has an id left: where not, only idle pages of that kind help.
  bool has_id(AttentionKind kind) const;
  /// Whether `counts` pages fit an empty pool.
  bool holds(const PageCounts& counts) const;
  /// Whether `counts` more pages fit beside those in use; idle ones would give way.
  bool has_room(const PageCounts& counts) const;
  /// A page with one user, or kNoPage.
  PageId allocate(AttentionKind kind);
  /// Adds a user to an allocated page.
  void retain(AttentionKind kind, PageId page);
  /// Takes a user away and returns how many are left. At 0 the page is idle until free().
  int release(AttentionKind kind, PageId page);
  /// Gives an idle page back.
  void free(AttentionKind kind, PageId page);

  int users(AttentionKind kind, PageId page) const;

  std::size_t budget_bytes() const { return budget_bytes_; }
  std::size_t bytes_used() const { return bytes_of(&Pages::num_used); }
  std::size_t bytes_idle() const { return bytes_of(&Pages::num_idle); }

  /// Recounts users and bytes. `users`: by kind and page, counted from the page tables; pages
  /// beyond its end have none. kInternal names the first page that differs.
  core::Status check(const std::array<std::vector<int>, kernels::kNumAttentionKinds>& users) const;

 private:
  static constexpr int kFree = -1;
  struct Pages {
    std::vector<int> users;    // by id, kFree: on the free list; grows with the ids handed out
    std::vector<PageId> free;  // a stack
    int num_used = 0;
    int num_idle = 0;
  };

  Pages& pages(AttentionKind kind) { return pages_[index_of(kind)]; }
  const Pages& pages(AttentionKind kind) const { return pages_[index_of(kind)]; }
  std::size_t bytes_of(int Pages::*count) const;
  bool has_bytes(AttentionKind kind) const;

  kernels::KvLayout layout_;
  std::size_t budget_bytes_;
  std::array<Pages, kernels::kNumAttentionKinds> pages_;
};

}  // namespace tandem::engine
