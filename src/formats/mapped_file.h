#pragma once

#include <cstddef>
#include <span>
#include <string>

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

  /// Copies bytes out of the file. Unlike a look at bytes(), which maps whatever lies around them
  /// in the page cache, this makes nothing resident. False if the file has lost them. `range` must
  /// lie in bytes().
  bool read(std::span<const std::byte> range, std::byte* out) const;

  /// Tells the kernel that these bytes will not be read soon: their pages leave this process's
  /// resident set (they stay in the page cache). `range` must lie in bytes(). Still readable.
  void forget(std::span<const std::byte> range) const;

 private:
  bool holds(std::span<const std::byte> range) const {
    return range.data() >= data_ && range.data() + range.size() <= data_ + size_;
  }

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace tandem::formats
