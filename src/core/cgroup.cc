#include "tandem/core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <vector>

namespace tandem::core {
namespace {

/// Where the files of version 2 may be: in the group that /proc/self/cgroup names as
/// "0::/system.slice/tandem.service", or, in a container, at the top.
std::vector<std::string> unified_groups(const std::string& root) {
  const std::string top = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return {top + line.substr(3), top};
  }
  return {top};
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
  for (const std::string& group : unified_groups(root)) {
    std::ifstream both(group + "/cpu.max");
    const auto quota = read_limit(both);
    if (const auto cores = cores_of(quota, read_limit(both))) return cores;
  }
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
  for (const std::string& group : unified_groups(root)) {
    if (const auto bytes = bytes_in(group + "/memory.max")) return bytes;
  }
  return bytes_in(root + "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

}  // namespace tandem::core
