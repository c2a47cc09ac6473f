#include "tandem/kernels/kv_shares.h"

#include <algorithm>

#include "tandem/core/checked_math.h"

namespace tandem::kernels {

std::array<std::size_t, kNumAttentionKinds> kv_shares(const Geometry& geometry,
                                                      const KvLayout& layout) {
  constexpr std::size_t kSliding = index_of(AttentionKind::kSliding);
  constexpr std::size_t kFull = index_of(AttentionKind::kFull);
  const std::size_t budget = geometry.kv_memory_bytes;
  const std::size_t sliding = layout.page_bytes[kSliding];
  const std::size_t full = layout.page_bytes[kFull];
  std::array<std::size_t, kNumAttentionKinds> shares = {};
  if (sliding == 0 || full == 0) {
    shares[sliding == 0 ? kFull : kSliding] = budget;
    return shares;
  }
  // A text that begins anywhere in a page reaches into one more.
  const auto pages = [&](int tokens) {
    return static_cast<std::size_t>(core::ceil_div(tokens, layout.page_tokens)) + 1;
  };
  const std::size_t one_window = pages(geometry.window + geometry.max_rows) * sliding;
  const std::size_t windows = one_window + static_cast<std::size_t>(geometry.max_sequences) *
                                               pages(geometry.window) * sliding;
  const std::size_t least = budget - std::min(budget, windows);
  const std::size_t most = budget - std::min({budget, windows, std::max(one_window, budget / 2)});
  const std::size_t longest = pages(geometry.max_context) * full;
  const std::size_t by_tokens = budget / (sliding + full) * full;
  shares[kFull] = std::clamp(std::max(longest, by_tokens), least, most);
  shares[kSliding] = budget - shares[kFull];
  return shares;
}

}  // namespace tandem::kernels
