#pragma once

namespace tandem::kernels::cpu {

/// Positions of a KV page.
inline constexpr int kPageTokens = 32;
/// Keys of an attention block. Blocks are cut at multiples of it by absolute position, so that
/// the order of sums never depends on chunking, on the window or on who computes.
inline constexpr int kBlockTokens = 256;
inline constexpr int kPagesPerBlock = kBlockTokens / kPageTokens;

}  // namespace tandem::kernels::cpu
