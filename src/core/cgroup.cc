#include "tandem/core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <vector>

namespace tandem::core {
namespace {

/// Where the files of version 2 may be: in the group that /proc/self/cgroup names as
/// "0::/system.slice/tandem.service" and in those above it, or, in a container, at the top. The
/// limits of all of them hold.
std::vector<std::string> unified_groups(const std::string& root) {
  const std::string top = root + "/sys/fs/cgroup";
  std::vector<std::string> groups = {top};
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      groups.push_back(top + path);
    }
  }
  return groups;
}

/// The smaller of two limits, either of which may be none.
template <typename T>
std::optional<T> tighter(std::optional<T> a, std::optional<T> b) {
  return a && b ? std::min(a, b) : (a ? a : b);
}

/// A number above 0; "max" and -1 are no limit.
std::optional<double> read_limit(std::istream& text) {
  double number = 0;
  return text >> number && number > 0 ? std::optional(number) : std::nullopt;
}
std::optional<double> read_limit(const std::string& path) {
  std::ifstream file(path);
  return read_limit(file);
}

std::optional<int> cores_of(std::optional<double> quota, std::optional<double> period) {
  if (!quota || !period) return std::nullopt;
  return static_cast<int>(std::clamp(*quota / *period, 1.0, 65536.0));
}

}  // namespace

std::optional<int> cpu_quota(const std::string& root) {
  std::optional<int> cores;
  for (const std::string& group : unified_groups(root)) {
    std::ifstream both(group + "/cpu.max");
    const auto quota = read_limit(both);
    cores = tighter(cores, cores_of(quota, read_limit(both)));
  }
  if (cores) return cores;
  const std::string group = root + "/sys/fs/cgroup/cpu/";
  return cores_of(read_limit(group + "cpu.cfs_quota_us"), read_limit(group + "cpu.cfs_period_us"));
}

std::optional<std::uint64_t> memory_limit(const std::string& root) {
  constexpr double kNoLimit = 0x1p62;  // version 1 writes the largest multiple of a page
  const auto bytes_in = [](const std::string& path) {
    const auto limit = read_limit(path);
    return limit && *limit < kNoLimit ? std::optional(static_cast<std::uint64_t>(*limit))
                                      : std::nullopt;
  };
  std::optional<std::uint64_t> bytes;
  for (const std::string& group : unified_groups(root)) {
    bytes = tighter(bytes, bytes_in(group + "/memory.max"));
  }
  if (bytes) return bytes;
  return bytes_in(root + "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

}  // namespace tandem::core
