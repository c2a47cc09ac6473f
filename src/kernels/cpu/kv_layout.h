#pragma once

#include <cstddef>

namespace tandem::kernels::cpu {

/// Positions of a KV page.
inline constexpr int kPageTokens = 32;
/// Keys of an attention block. Blocks are cut at multiples of it by absolute position, so that
/// the order of sums never depends on chunking, on the window or on who computes.
inline constexpr int kBlockTokens = 256;
inline constexpr int kPagesPerBlock = kBlockTokens / kPageTokens;

// A head's keys and values in a page are integer codes; behind either lie f32 [32 keys] scales.
//   kF16:  16 bits, in pairs that one instruction multiplies and adds: keys [D / 2][32 keys][2],
//          values [D / 64][16 pairs of keys][64 components][2 keys], the last 64 being what is
//          left.
//   kInt8: codes plus 128 as a matrix product of packed panels wants them (panel.h), a vector being
//          4 columns of 16 rows: keys are rows, [2 panels][D / 4][16 keys][4]; of the values the
//          head's components are rows and the keys columns, [D / 16][8][16 components][4 keys].

/// Components of a 16-bit value that lie together.
inline constexpr int kValueChunk = 64;

/// Bytes of a page's scales for each position.
inline constexpr std::size_t kScaleBytes = 4;

/// The largest code of an int8 cache.
inline constexpr float kLargestInt8 = 127.0F;
/// What is added to its codes, which are then unsigned.
inline constexpr int kInt8Offset = 128;

// The codes of a 16-bit cache are as large as leaves every sum of products, and every part of one,
// in 32 bits whatever the values: it is then exact, in any order. A score is at most the product of
// two Euclidean lengths (Cauchy and Schwarz); a sum of weighted values is at most the largest value
// times the sum of the weights. Rounding adds half a code to each of up to 4,096 codes.

/// The largest code of a query, a key or a softmax weight.
inline constexpr float kLargestCode = 32700.0F;
/// The greatest length of a query's or key's codes.
inline constexpr float kLongestCodes = 46000.0F;
/// The largest code of a value.
inline constexpr float kLargestValue = 8191.0F;
/// The largest sum of a block's weights.
inline constexpr float kLargestWeights = 261000.0F;

constexpr double square(double x) {
  return x * x;
}
static_assert(square(kLongestCodes + 0.5 * 64 + 1) < 0x1p31);
static_assert((kLargestWeights + 0.5 * kBlockTokens + 1) * kLargestValue < 0x1p31);

}  // namespace tandem::kernels::cpu
