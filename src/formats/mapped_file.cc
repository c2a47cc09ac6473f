#include "tandem/formats/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tandem::formats {
namespace {

core::Status open_error(const std::string& path, int error) {
  const std::string message =
      fmt::format("{}: cannot open the file ({}); check the path", path, std::strerror(error));
  return error == ENOENT || error == ENOTDIR ? core::not_found(message)
                                             : core::invalid_argument(message);
}

}  // namespace

core::Result<MappedFile> MappedFile::open(const std::string& path) {
  // A file name is bytes up to the first NUL for the kernel; a longer one names something else.
  if (path.empty() || path.find('\0') != std::string::npos) {
    return core::invalid_argument("the file name is empty or holds a NUL byte; give a path");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return open_error(path, errno);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return open_error(path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return core::invalid_argument(
        fmt::format("{}: is {}, not a file; give the path of one file", path,
                    S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket"));
  }
  if (info.st_size == 0) {
    ::close(fd);
    return core::invalid_argument(fmt::format("{}: the file is empty; download it again", path));
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    return core::resource_exhausted(
        fmt::format("{}: cannot map the file's {} bytes ({})", path, size, std::strerror(error)));
  }
  MappedFile file;
  file.path_ = path;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  file.fd_ = fd;
  return file;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

bool MappedFile::read(std::span<const std::byte> range, std::byte* out) const {
  TANDEM_CHECK(holds(range), "the range must lie in the file");
  auto at = static_cast<off_t>(range.data() - data_);
  for (std::size_t left = range.size(); left > 0;) {
    const ssize_t n = ::pread(fd_, out, left, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out += n;
    at += n;
    left -= static_cast<std::size_t>(n);
  }
  return true;
}

void MappedFile::forget(std::span<const std::byte> range) const {
  if (range.empty()) return;
  TANDEM_CHECK(holds(range), "the range must lie in the file");
  // Only pages wholly inside: a neighbour's page may still be wanted.
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(range.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(range.data() + range.size()) / page * page;
  if (begin >= end) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace tandem::formats
