#include "tandem/engine/kv_manager.h"

#include <algorithm>
#include <limits>

#include "tandem/core/checked_math.h"

namespace tandem::engine {

KvManager::KvManager(const KvOptions& options)
    : pool_(options.layout, options.budget_bytes),
      cache_(pool_, options.window, options.prefix_cache ? options.prefix_cache_bytes : 0,
             options.prefix_cache),
      window_(options.window) {}

int KvManager::sliding_pages_in_flight(int length, int chunk) const {
  // Keys (p - W, p + chunk) of a row at p: W - 1 + chunk positions at any alignment.
  const int visible = core::ceil_div(window_ - 2 + chunk, pool_.page_tokens()) + 1;
  return std::min(core::ceil_div(length, pool_.page_tokens()), visible);
}

int KvManager::capacity_tokens() const {
  const int window_pages = sliding_pages_in_flight(std::numeric_limits<int>::max() / 2, 1);
  const auto holds = [&](int pages) {
    PageCounts counts = {};
    counts[index_of(AttentionKind::kFull)] = pages;
    counts[index_of(AttentionKind::kSliding)] = std::min(pages, window_pages);
    return pool_.holds(counts);
  };
  int low = 0;  // pages that fit, in a search by halves
  for (int step = 1 << 30; step > 0; step /= 2) {
    if (low <= std::numeric_limits<int>::max() - step && holds(low + step)) low += step;
  }
  const auto tokens = std::int64_t{low} * pool_.page_tokens();
  return static_cast<int>(std::min<std::int64_t>(tokens, std::numeric_limits<int>::max() / 2));
}

void KvManager::update_keys(Sequence& s) const {
  const auto page = static_cast<std::size_t>(pool_.page_tokens());
  const std::span<const TokenId> tokens = s.tokens;
  for (std::size_t i = s.page_keys.size(); (i + 1) * page <= tokens.size(); ++i) {
    const PageKey parent = i == 0 ? PageKey{} : s.page_keys[i - 1];
    s.page_keys.push_back(chain_key(parent, tokens.subspan(i * page, page)));
  }
}

std::span<const PageKey> KvManager::reusable_keys(const Sequence& s) const {
  const int pages = s.reusable_length() / pool_.page_tokens();
  return std::span(s.page_keys).first(static_cast<std::size_t>(pages));
}

PrefixCache::Match KvManager::find_prefix(Sequence& s) const {
  if (!cache_.enabled()) return {};
  update_keys(s);
  return cache_.find(reusable_keys(s), s.tokens);
}

bool KvManager::fits(Sequence& s, int chunk, const PageCounts& reserve) const {
  const PrefixCache::Match match = find_prefix(s);
  const int sliding_hits = match.num_pages - match.first_sliding;
  PageCounts counts = reserve + match.idle;
  counts[index_of(AttentionKind::kFull)] +=
      core::ceil_div(s.length(), pool_.page_tokens()) - match.num_pages;
  counts[index_of(AttentionKind::kSliding)] +=
      std::max(0, sliding_pages_in_flight(s.length(), chunk) - sliding_hits);
  return pool_.has_room(counts);
}

PageCounts KvManager::pages_to_come(const Sequence& s, int chunk) const {
  const PageTable& held = s.tables[index_of(AttentionKind::kSliding)];
  const int known = s.is_started ? s.computed : s.known_prefix;
  const int sliding = sliding_pages_in_flight(s.length(), chunk) -
                      (static_cast<int>(held.pages.size()) - held.first);
  PageCounts counts = {};
  counts[index_of(AttentionKind::kFull)] =
      core::ceil_div(s.length(), pool_.page_tokens()) - core::ceil_div(known, pool_.page_tokens());
  counts[index_of(AttentionKind::kSliding)] = std::max(0, sliding);
  return counts;
}

int KvManager::known_prefix(Sequence& s) const {
  return find_prefix(s).num_pages * pool_.page_tokens();
}

void KvManager::attach_prefix(Sequence& s) {
  if (!cache_.enabled()) return;
  const PrefixCache::Match match = find_prefix(s);
  for (const AttentionKind kind : kAttentionKinds) {
    PageTable& table = s.tables[index_of(kind)];
    table.first = kind == AttentionKind::kSliding ? match.first_sliding : 0;
    table.pages.assign(static_cast<std::size_t>(match.num_pages), kNoPage);
    for (auto i = static_cast<std::size_t>(table.first); i < table.pages.size(); ++i) {
      table.pages[i] = cache_.acquire(s.page_keys[i], kind);
    }
  }
  s.computed = match.num_pages * pool_.page_tokens();
  s.indexed_pages = match.num_pages;
}

bool KvManager::reserve(Sequence& s, Position end) {
  const auto num_pages = static_cast<std::size_t>(core::ceil_div(end, pool_.page_tokens()));
  // Both kinds in step, so that a budget that holds a page of each is never spent on one of them.
  for (auto i = static_cast<std::size_t>(reserved_end(s) / pool_.page_tokens()); i < num_pages;
       ++i) {
    for (const AttentionKind kind : kAttentionKinds) {
      std::vector<PageId>& pages = s.tables[index_of(kind)].pages;
      if (pages.size() > i) continue;
      const PageId page = cache_.allocate(kind);
      if (page == kNoPage) return false;
      pages.push_back(page);
    }
  }
  return true;
}

void KvManager::trim(Sequence& s) {
  const auto num_pages = static_cast<std::size_t>(core::ceil_div(s.computed, pool_.page_tokens()));
  for (const AttentionKind kind : kAttentionKinds) {
    std::vector<PageId>& pages = s.tables[index_of(kind)].pages;
    for (; pages.size() > num_pages; pages.pop_back()) {
      cache_.release(kind, pages.back(), Retention::kRecent);
    }
  }
}

Position KvManager::reserved_end(const Sequence& s) const {
  const std::size_t pages = std::min(s.tables[0].pages.size(), s.tables[1].pages.size());
  return static_cast<Position>(pages) * pool_.page_tokens();
}

Retention KvManager::retention_of(const Sequence& s, int page) const {
  // A later prompt branches off near the end of this one (another question after the same
  // instructions, history that a template rewrites) or continues its whole text. Sliding pages
  // that serve neither only fill room that is left.
  const int page_tokens = pool_.page_tokens();
  const bool near_prompt_end =
      (page + 1) * page_tokens > s.num_prompt - 2 * window_ && page * page_tokens < s.num_prompt;
  return near_prompt_end ? Retention::kRecent : Retention::kCold;
}

void KvManager::settle(Sequence& s) {
  const int page_tokens = pool_.page_tokens();
  if (cache_.enabled()) {
    update_keys(s);
    for (; (s.indexed_pages + 1) * page_tokens <= s.computed; ++s.indexed_pages) {
      const auto i = static_cast<std::size_t>(s.indexed_pages);
      const auto text = std::span(s.tokens).subspan(i * static_cast<std::size_t>(page_tokens),
                                                    static_cast<std::size_t>(page_tokens));
      for (const AttentionKind kind : kAttentionKinds) {
        const PageKey parent = i == 0 ? PageKey{} : s.page_keys[i - 1];
        cache_.insert(s.page_keys[i], parent, text, kind, s.tables[index_of(kind)].pages[i]);
      }
    }
  }
  trim(s);
  PageTable& sliding = s.tables[index_of(AttentionKind::kSliding)];
  const int first =
      std::min(static_cast<int>(sliding.pages.size()), cache_.first_visible_page(s.computed));
  for (; sliding.first < first; ++sliding.first) {
    PageId& page = sliding.pages[static_cast<std::size_t>(sliding.first)];
    cache_.release(AttentionKind::kSliding, page, retention_of(s, sliding.first));
    page = kNoPage;
  }
}

void KvManager::release(Sequence& s) {
  // Last page first: the LRU then shortens a text from its end, and what is left stays a prefix.
  const std::size_t longest = std::max(s.tables[0].pages.size(), s.tables[1].pages.size());
  for (std::size_t i = longest; i-- > 0;) {
    for (const AttentionKind kind : kAttentionKinds) {
      const std::vector<PageId>& pages = s.tables[index_of(kind)].pages;
      if (i < pages.size() && pages[i] != kNoPage) {
        cache_.release(kind, pages[i], Retention::kRecent);
      }
    }
  }
  for (PageTable& table : s.tables) {
    table.pages.clear();
    table.first = 0;
  }
  s.computed = 0;
  s.indexed_pages = 0;
}

core::Status KvManager::check(std::span<const Sequence* const> sequences) const {
  std::array<std::vector<int>, kernels::kNumAttentionKinds> users;
  for (const Sequence* sequence : sequences) {
    TANDEM_TRY(sequence->check(pool_.page_tokens(), window_));
    for (const AttentionKind kind : kAttentionKinds) {
      std::vector<int>& counts = users[index_of(kind)];
      for (const PageId page : sequence->tables[index_of(kind)].pages) {
        if (page == kNoPage) continue;
        const auto i = static_cast<std::size_t>(page);
        if (i >= counts.size()) counts.resize(i + 1, 0);
        ++counts[i];
      }
    }
  }
  TANDEM_TRY(pool_.check(users));
  return cache_.check();
}

}  // namespace tandem::engine
