#pragma once

// Expansion of brick codes to fp16 A fragments in registers, 64 columns (a chunk of four k-steps)
// at a time. Codes become fp16 exactly; the scale is applied with one rounding.

#include "tandem/kernels/cuda/brick_parts.cuh"
#include "tandem/kernels/cuda/kquant_bricks.cuh"

namespace tandem::kernels::cuda {

/// Q8: [codes + 128: warp][2 k-steps][lane][16 B], [scale words: fp16 scales of two groups of 32].
/// Byte 2 i + e of a k-step's 8 bytes is element e of register i.
template <>
struct BrickReader<BrickKind::kQ8> {
  const uint4* codes;
  const uint2* scales;
  uint4 word[2], next_word[2];
  uint2 s, next_s;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 256 + lane;
    scales = scale_words(brick + 16384, warp, lane);
    fetch(0);
  }
  __device__ void fetch(int chunk) {
    next_word[0] = codes[64 * chunk];
    next_word[1] = codes[64 * chunk + 32];
    next_s = scales[8 * chunk];
  }
  __device__ void load(int chunk) {
    word[0] = next_word[0];
    word[1] = next_word[1];
    s = next_s;
    if (chunk + 1 < kBrickChunks) fetch(chunk + 1);
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    const half2 bias = __float2half2_rn(-1152.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t w = word_of(word[step / 2], step % 2 * 2 + i / 2);
      const half2 q = __hadd2(bytes_1024(w, i % 2 ? kHighBytes : kLowBytes), bias);
      a[i] = as_bits(__hmul2(q, broadcast(as_half2(i & 1 ? s.y : s.x), step / 2)));
    }
  }
};

/// Two e4m3 codes in the upper bytes of the halves of t, as fp16 of 1/256 of their values: exact.
__device__ inline half2 e4m3_256(std::uint32_t t) {
  return as_half2(and_or(t, 0x80008000u, (t >> 1) & 0x3f803f80u));
}

/// F8: [codes: warp][2 k-steps][lane][16 B], [row words: 2 fp16 factors of 128, times 256]. Of a
/// k-step's two words, byte 2 e + 1 of word i / 2 is element e of its first register, byte 2 e of
/// its second.
template <>
struct BrickReader<BrickKind::kF8> {
  const uint4* codes;
  uint2 factors;
  half2 s[2];
  uint4 word[2], next_word[2];

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 256 + lane;
    factors = row_words(brick + 16384, warp, lane);
    fetch(0);
  }
  __device__ void fetch(int chunk) {
    next_word[0] = codes[64 * chunk];
    next_word[1] = codes[64 * chunk + 32];
  }
  __device__ void load(int chunk) {
    word[0] = next_word[0];
    word[1] = next_word[1];
    if (chunk + 1 < kBrickChunks) fetch(chunk + 1);
    s[0] = broadcast(as_half2(factors.x), chunk / 2);
    s[1] = broadcast(as_half2(factors.y), chunk / 2);
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t w = word_of(word[step / 2], step % 2 * 2 + i / 2);
      a[i] = as_bits(__hmul2(e4m3_256(i % 2 ? w << 8 : w), s[i & 1]));
    }
  }
};

/// Fp4: [codes: warp][chunk][lane][word of a k-step], [scale words: 4 e4m3 scales of 16]. Nibble
/// 4 e + i of a word is element e of register i. An E2M1 code, moved, is an fp16 of 2^-14 of its
/// value; with a scale times 64 the product is exact: 2^-8 of the weight.
template <>
struct BrickReader<BrickKind::kFp4> {
  const uint4* codes;
  const uint2* scales;
  half2 s[2][2];  // rows r, r + 8: four groups of the chunk, in pairs
  uint4 word, next_word;
  uint2 next_scales;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    scales = scale_words(brick + 8192, warp, lane);
    fetch(0);
  }
  __device__ void fetch(int chunk) {
    next_word = codes[32 * chunk];
    next_scales = scales[8 * chunk];
  }
  __device__ void load(int chunk) {
    word = next_word;
    const half2 unit = __float2half2_rn(16384.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t bytes = i & 1 ? next_scales.y : next_scales.x;
      s[i & 1][i / 2] = __hmul2(e4m3_256(__byte_perm(bytes, 0, i / 2 ? 0x3424 : 0x1404)), unit);
    }
    if (chunk + 1 < kBrickChunks) fetch(chunk + 1);
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    const std::uint32_t w = word_of(word, step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t t = w << (12 - 4 * i);
      const half2 q = as_half2(and_or(t, 0x80008000u, (t >> 3) & 0x0e000e00u));
      a[i] = as_bits(__hmul2(q, broadcast(s[i & 1][step / 2], step % 2)));
    }
  }
};

/// F16: strips, of which a chunk is one; a register of all lanes is a core matrix.
template <>
struct BrickReader<BrickKind::kF16> {
  const std::uint32_t* values;
  const std::uint32_t* chunk_values;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    values = reinterpret_cast<const std::uint32_t*>(brick + strip_at(16 * warp, 0)) + lane;
  }
  __device__ void load(int chunk) { chunk_values = values + kStripBytes / 4 * chunk; }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = chunk_values[(2 * step + i / 2) * 32 + i % 2 * 256];
  }
};

}  // namespace tandem::kernels::cuda
