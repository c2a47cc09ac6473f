#include "tandem/engine/page_pool.h"

#include <algorithm>

#include <fmt/format.h>

#include "tandem/core/check.h"

namespace tandem::engine {

PagePool::PagePool(const kernels::KvLayout& layout, std::size_t budget_bytes)
    : layout_(layout), budget_bytes_(budget_bytes) {}

std::size_t PagePool::bytes_of(int Pages::*count) const {
  std::size_t bytes = 0;
  for (const AttentionKind kind : kAttentionKinds) {
    bytes += page_bytes(kind) * static_cast<std::size_t>(pages(kind).*count);
  }
  return bytes;
}

bool PagePool::has_id(AttentionKind kind) const {
  const Pages& p = pages(kind);
  return !p.free.empty() ||
         p.users.size() < static_cast<std::size_t>(layout_.max_pages[index_of(kind)]);
}

bool PagePool::has_bytes(AttentionKind kind) const {
  return page_bytes(kind) <= budget_bytes_ - bytes_used() - bytes_idle();
}

bool PagePool::holds(const PageCounts& counts) const {
  std::size_t bytes = 0;
  for (const AttentionKind kind : kAttentionKinds) {
    if (counts[index_of(kind)] > layout_.max_pages[index_of(kind)]) return false;
    bytes += page_bytes(kind) * static_cast<std::size_t>(counts[index_of(kind)]);
  }
  return bytes <= budget_bytes_;
}

bool PagePool::has_room(const PageCounts& counts) const {
  return holds(counts + PageCounts{pages_[0].num_used, pages_[1].num_used});
}

PageId PagePool::allocate(AttentionKind kind) {
  if (!can_allocate(kind)) return kNoPage;
  Pages& p = pages(kind);
  PageId page = kNoPage;
  if (p.free.empty()) {
    page = static_cast<PageId>(p.users.size());
    p.users.push_back(1);
  } else {
    page = p.free.back();
    p.free.pop_back();
    p.users[static_cast<std::size_t>(page)] = 1;
  }
  ++p.num_used;
  return page;
}

void PagePool::retain(AttentionKind kind, PageId page) {
  Pages& p = pages(kind);
  int& users = p.users[static_cast<std::size_t>(page)];
  TANDEM_CHECK(users >= 0, "a free page gets no user");
  if (users == 0) {
    --p.num_idle;
    ++p.num_used;
  }
  ++users;
}

int PagePool::release(AttentionKind kind, PageId page) {
  Pages& p = pages(kind);
  int& users = p.users[static_cast<std::size_t>(page)];
  TANDEM_CHECK(users > 0, "only a page in use is released");
  --users;
  if (users == 0) {
    --p.num_used;
    ++p.num_idle;
  }
  return users;
}

void PagePool::free(AttentionKind kind, PageId page) {
  Pages& p = pages(kind);
  int& users = p.users[static_cast<std::size_t>(page)];
  TANDEM_CHECK(users == 0, "only an idle page is freed");
  users = kFree;
  --p.num_idle;
  p.free.push_back(page);
}

int PagePool::users(AttentionKind kind, PageId page) const {
  return pages(kind).users[static_cast<std::size_t>(page)];
}

core::Status PagePool::check(
    const std::array<std::vector<int>, kernels::kNumAttentionKinds>& users) const {
  std::size_t used = 0;
  std::size_t idle = 0;
  for (const AttentionKind kind : kAttentionKinds) {
    const Pages& p = pages(kind);
    const std::vector<int>& expected = users[index_of(kind)];
    std::size_t num_free = 0;
    for (std::size_t i = 0; i < p.users.size(); ++i) {
      const int holders = i < expected.size() ? expected[i] : 0;
      if (std::max(p.users[i], 0) != holders) {
        return core::internal_error(
            fmt::format("page {} of kind {} counts {} users, {} tables hold it", i, index_of(kind),
                        p.users[i], holders));
      }
      if (p.users[i] > 0) used += page_bytes(kind);
      if (p.users[i] == 0) idle += page_bytes(kind);
      if (p.users[i] == kFree) ++num_free;
    }
    if (num_free != p.free.size()) {
      return core::internal_error(fmt::format("kind {}: {} pages are free, {} are listed",
                                              index_of(kind), num_free, p.free.size()));
    }
  }
  if (used != bytes_used() || idle != bytes_idle() || used + idle > budget_bytes_) {
    return core::internal_error(fmt::format("{} bytes used and {} idle, counted as {} and {} of {}",
                                            used, idle, bytes_used(), bytes_idle(), budget_bytes_));
  }
  return {};
}

}  // namespace tandem::engine
