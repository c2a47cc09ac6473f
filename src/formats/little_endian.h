#pragma once

#include <cstddef>
#include <cstring>

namespace tandem::formats {

/// A little-endian value at p, which may be misaligned.
template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace tandem::formats
