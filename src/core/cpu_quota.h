#pragma once

#include <optional>
#include <string>

namespace tandem::core {

/// Cores' worth of time that a container or a service manager leaves this process (a cgroup's
/// quota, of version 1 or 2), rounded down, at least 1; nothing where there is no quota. Threads
/// beyond it would all be stopped for a part of every period. `root`: where /proc and /sys are.
std::optional<int> cpu_quota(const std::string& root = "");

}  // namespace tandem::core
