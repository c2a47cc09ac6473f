#pragma once

#include <span>
#include <string_view>

namespace tandem::server {

/// A file of the chat page, src/server/page/, as it is built into the program.
struct PageFile {
  std::string_view name;
  std::string_view bytes;
};
std::span<const PageFile> page_files();

}  // namespace tandem::server
