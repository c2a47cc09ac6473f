#include "tandem/engine/block_pool.h"

#include <algorithm>

#include <fmt/format.h>

#include "tandem/core/check.h"

namespace tandem::engine {

BlockPool::BlockPool(const kernels::KvLayout& layout, std::size_t budget_bytes)
    : layout_(layout), budget_bytes_(budget_bytes) {}

bool BlockPool::can_allocate(AttentionKind kind) const {
  const Pages& p = pages(kind);
  const bool has_id = !p.free.empty() ||
                      p.users.size() < static_cast<std::size_t>(layout_.max_pages[index_of(kind)]);
  return has_id && page_bytes(kind) <= budget_bytes_ - bytes_used_ - bytes_idle_;
}

PageId BlockPool::allocate(AttentionKind kind) {
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
  bytes_used_ += page_bytes(kind);
  return page;
}

void BlockPool::retain(AttentionKind kind, PageId page) {
  int& users = pages(kind).users[static_cast<std::size_t>(page)];
  TANDEM_CHECK(users >= 0, "a free page gets no user");
  if (users == 0) {
    bytes_idle_ -= page_bytes(kind);
    bytes_used_ += page_bytes(kind);
  }
  ++users;
}

int BlockPool::release(AttentionKind kind, PageId page) {
  int& users = pages(kind).users[static_cast<std::size_t>(page)];
  TANDEM_CHECK(users > 0, "only a page in use is released");
  --users;
  if (users == 0) {
    bytes_used_ -= page_bytes(kind);
    bytes_idle_ += page_bytes(kind);
  }
  return users;
}

void BlockPool::free(AttentionKind kind, PageId page) {
  int& users = pages(kind).users[static_cast<std::size_t>(page)];
  TANDEM_CHECK(users == 0, "only an idle page is freed");
  users = kFree;
  bytes_idle_ -= page_bytes(kind);
  pages(kind).free.push_back(page);
}

int BlockPool::users(AttentionKind kind, PageId page) const {
  return pages(kind).users[static_cast<std::size_t>(page)];
}

core::Status BlockPool::check(
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
  if (used != bytes_used_ || idle != bytes_idle_ || used + idle > budget_bytes_) {
    return core::internal_error(fmt::format("{} bytes used and {} idle, counted as {} and {} of {}",
                                            used, idle, bytes_used_, bytes_idle_, budget_bytes_));
  }
  return {};
}

}  // namespace tandem::engine
