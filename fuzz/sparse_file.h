#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "memory_file.h"

namespace tandem::fuzz {

/// An input of a fuzz target as a file: its last three bytes, the lowest first, count the zero
/// bytes that follow the others (modulo kMostZeros). So tensors are no part of a corpus, and cost
/// nothing until they are read.
class SparseFile {
 public:
  static constexpr std::size_t kCountBytes = 3;
  static constexpr std::size_t kMostZeros = std::size_t{2} << 20;  // enough for the tiny models

  SparseFile(const std::uint8_t* data, std::size_t size)
      : head_size_(size < kCountBytes ? 0 : size - kCountBytes),
        file_({reinterpret_cast<const char*>(data), head_size_}) {
    std::size_t zeros = 0;
    for (std::size_t i = head_size_; i < size; ++i) zeros |= data[i] << (8 * (i - head_size_));
    zeros %= kMostZeros;
    if (::truncate(path().c_str(), static_cast<off_t>(head_size_ + zeros)) != 0) std::abort();
  }

  const std::string& path() const { return file_.path(); }

  /// The input that stands for a file of `head` and zeros up to `size`.
  static std::string input(std::string_view head, std::size_t size) {
    std::string out(head);
    for (std::size_t zeros = size - head.size(), i = 0; i < kCountBytes; ++i, zeros >>= 8) {
      out += static_cast<char>(zeros & 0xff);
    }
    return out;
  }

 private:
  std::size_t head_size_;
  formats::MemoryFile file_;
};

}  // namespace tandem::fuzz
