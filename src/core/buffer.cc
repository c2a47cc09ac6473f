#include "tandem/core/buffer.h"

#include <sys/mman.h>

#include <string>

namespace tandem::core {

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Result<Arena> Arena::reserve(std::size_t bytes, bool huge_pages) {
  Arena arena;
  if (bytes == 0) return arena;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return resource_exhausted("cannot reserve " + std::to_string(bytes >> 20) +
                              " MiB of memory; lower --kv-memory or free memory");
  }
  if (huge_pages) madvise(p, bytes, MADV_HUGEPAGE);
  arena.data_ = static_cast<std::byte*>(p);
  arena.size_ = bytes;
  return arena;
}

}  // namespace tandem::core
