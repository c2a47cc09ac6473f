#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace tandem::formats {

/// A file that lives in memory only, with a path that can be opened while this object lives.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes)
      : fd_(::memfd_create("tandem-test", MFD_CLOEXEC)),
        path_("/proc/self/fd/" + std::to_string(fd_)) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written <= 0) {
        std::perror("cannot write a file in memory");
        std::abort();
      }
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace tandem::formats
