#pragma once

#include <cstddef>
#include <utility>

#include "tandem/core/status.h"

namespace tandem::core {

/// Anonymous memory straight from the kernel: zeroed, page-aligned, given physical pages only
/// when first touched. One class for weights, KV pages and workspaces: the size is an upper bound,
/// not a cost. Movable, not copyable. Thread: any; the contents are the owner's business.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Reserves `bytes` of address space, asking for huge pages if `huge_pages` (a hint).
  /// Fails with kResourceExhausted when the kernel refuses.
  static Result<Arena> reserve(std::size_t bytes, bool huge_pages);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const { return reinterpret_cast<T*>(data_); }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tandem::core
