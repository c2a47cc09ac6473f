#pragma once

#include <cstddef>

namespace tandem::kernels::cpu {

/// Logits of sampling rows that exist at once, at most; one row exists in any case.
inline constexpr std::size_t kLogitBytes = std::size_t{32} << 20;

/// Partial results of split attention that exist at once, at most.
inline constexpr std::size_t kPartialBytes = std::size_t{16} << 20;

}  // namespace tandem::kernels::cpu
