#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "tandem/core/status.h"

namespace tandem::formats {

/// A whole file mapped read-only. Movable; views into it die with it.
/// Thread: reading from any thread.
class MappedFile {
 public:
  /// Fails with kNotFound / kInvalidArgument (directory, empty, unreadable), naming the path.
  static core::Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// True if `p` points into the file.
  bool holds(const std::byte* p) const { return p >= data_ && p < data_ + size_; }

  /// Tells the kernel that these bytes will not be read soon: their pages leave this process's
  /// resident set (they stay in the page cache). `range` must lie in bytes(). Still readable.
  void forget(std::span<const std::byte> range) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tandem::formats
