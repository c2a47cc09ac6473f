#pragma once

#include <cstdio>
#include <string_view>

namespace tandem::core {

/// Writes text to standard output or error. fmt::print throws where the disk is full; this leaves
/// it to the stream's error flag, which main() looks at. Thread: any.
inline void print(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace tandem::core
