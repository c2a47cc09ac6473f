#pragma once

#include <cstdint>
#include <optional>

namespace tandem::bench {

/// Peak resident memory (VmHWM) of a process and its living descendants, added up; nothing when
/// there is no such process or it is not ours to look at. Pages that they share count in each.
std::optional<std::uint64_t> peak_memory_of_tree(int pid);

}  // namespace tandem::bench
