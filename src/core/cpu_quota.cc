#include "tandem/core/cpu_quota.h"

#include <algorithm>
#include <fstream>

namespace tandem::core {
namespace {

/// Of "250000 100000", microseconds in a period; -1 or "max" is no quota.
std::optional<int> cores_of(std::istream& quota_text, std::istream& period_text) {
  double quota = 0, period = 0;
  if (!(quota_text >> quota) || !(period_text >> period)) return std::nullopt;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(quota / period, 1.0, 65536.0));
}

/// The cgroup of version 2 that /proc/self/cgroup names: "0::/system.slice/tandem.service".
std::string unified_group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::optional<int> cpu_quota(const std::string& root) {
  const std::string groups = root + "/sys/fs/cgroup";
  // In a container the path may be the host's, and its own group is mounted at the top.
  for (const std::string& group : {groups + unified_group(root), groups}) {
    std::ifstream both(group + "/cpu.max");
    if (const auto cores = cores_of(both, both)) return cores;
  }
  std::ifstream quota(groups + "/cpu/cpu.cfs_quota_us");
  std::ifstream period(groups + "/cpu/cpu.cfs_period_us");
  return cores_of(quota, period);
}

}  // namespace tandem::core
