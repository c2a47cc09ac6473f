#pragma once

#include <cstddef>

namespace tandem::kernels::cpu {

/// Positions of a KV page.
inline constexpr int kPageTokens = 32;
/// Keys of an attention block. Blocks are cut at multiples of it by absolute position, so that
/// the order of sums never depends on chunking, on the window or on who computes.
inline constexpr int kBlockTokens = 256;
inline constexpr int kPagesPerBlock = kBlockTokens / kPageTokens;

// A head's keys and values in a page, by KvType.
//   kF16:  keys f16 [D][32 keys], values f16 [D / 64][32 keys][64], the last 64 being what is left.
//   kInt8: codes plus 128 as a matrix product of packed panels wants them (panel.h), a vector being
//          4 columns of 16 rows: keys are rows, [2 panels][D / 4][16 keys][4]; of the values the
//          head's components are rows and the keys columns, [D / 16][8][16 components][4 keys].
//          Behind either lie f32 [32 keys] scales.

/// Components of an f16 value that lie together.
inline constexpr int kValueChunk = 64;

/// Bytes of an int8 page's scales for each position.
inline constexpr std::size_t kScaleBytes = 4;
/// The largest code of an int8 cache.
inline constexpr float kLargestCode = 127.0F;
/// What is added to its codes, which are then unsigned.
inline constexpr int kCodeOffset = 128;

}  // namespace tandem::kernels::cpu
