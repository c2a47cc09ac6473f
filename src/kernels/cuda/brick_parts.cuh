#pragma once

// What readers of bricks share (bricks.cuh).

#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

/// Two bytes of `word` as 1024 + byte, or as subnormals of 2^-24 * byte.
__device__ inline half2 bytes_1024(std::uint32_t word, std::uint32_t selector) {
  return as_half2(__byte_perm(word, 0x64646464u, selector));
}
__device__ inline half2 bytes_subnormal(std::uint32_t word, std::uint32_t selector) {
  return as_half2(__byte_perm(word, 0, selector));
}
/// Selectors of the lower and upper two bytes of a word, for both.
constexpr std::uint32_t kLowBytes = 0x4140, kHighBytes = 0x4342;

__device__ inline half2 broadcast(half2 v, int which) {
  return which ? __high2half2(v) : __low2half2(v);
}

/// (v & mask) | bits in one instruction; the compiler would take two when both are constants.
__device__ inline std::uint32_t and_or(std::uint32_t v, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(v), "r"(mask), "r"(bits));
  return out;
}

__device__ inline std::uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// Words of scales of rows r and r + 8 of a brick, a pair for each chunk.
__device__ inline const uint2* scale_words(const std::uint8_t* scales, int warp, int lane) {
  return reinterpret_cast<const uint2*>(scales) + warp * 32 + lane / 4;
}
/// A word of each of these rows, once a brick.
__device__ inline uint2 row_words(const std::uint8_t* words, int warp, int lane) {
  return reinterpret_cast<const uint2*>(words)[warp * 8 + lane / 4];
}

/// A lane's share of a brick: begin(), then for each chunk load() and its fragments 0..3. What a
/// chunk needs from shared memory is fetched while the one before it is at work.
template <BrickKind kKind>
struct BrickReader;

}  // namespace tandem::kernels::cuda
