#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::core {

// What a container or a service manager leaves this process: the limits of its cgroup, of version
// 1 or 2; nothing where there is no limit. `root`: where /proc and /sys are.

/// Cores' worth of time, rounded down, at least 1. Threads beyond it would all be stopped for a
/// part of every period.
std::optional<int> cpu_quota(const std::string& root = "");

/// Bytes of memory; a process that takes more is killed.
std::optional<std::uint64_t> memory_limit(const std::string& root = "");

}  // namespace tandem::core
