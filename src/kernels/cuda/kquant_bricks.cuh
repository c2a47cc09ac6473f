#pragma once

// Readers of the bricks of K-quants. A code, moved into the mantissa of a subnormal fp16, is exact;
// one fused multiply-add, with a scale that makes up for the power of two, gives the weight with
// one rounding. A fragment's 1 stands for 32 (brick_unit), so that these scales are in fp16's
// range.

#include "tandem/kernels/cuda/brick_parts.cuh"

namespace tandem::kernels::cuda {

/// Q4_K: [codes: warp][chunk][lane][word of a k-step], [scale words: 4 sc of two groups of 32, 4
/// mn], [row words: 2^11 d, -2^17 dmin]. In a word, bits 16 e + {6, 2, 10, 14} on (turning) are
/// element e of register i. Weights / 32.
template <>
struct BrickReader<BrickKind::kQ4K> {
  const uint4* codes;
  const uint2* scales;
  half2 d[2], bias[2], dmin[2];  // rows r, r + 8
  half2 s[2], small_s[2], m[2];  // two groups of the chunk; for codes at bit 6, at bit 2
  uint4 word, next_word;
  uint2 next_scales;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    scales = scale_words(brick + 8192, warp, lane);
    const uint2 raw = row_words(brick + 9216, warp, lane);
    fetch(0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const half2 both = as_half2(i ? raw.y : raw.x);
      d[i] = __low2half2(both);
      dmin[i] = __high2half2(both);
      bias[i] = __hmul2(d[i], __float2half2_rn(-1024.0f));
    }
  }
  __device__ void fetch(int chunk) {
    next_word = codes[32 * chunk];
    next_scales = scales[8 * chunk];
  }
  __device__ void load(int chunk) {
    word = next_word;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t bytes = i ? next_scales.y : next_scales.x;
      s[i] = __hfma2(bytes_1024(bytes, kLowBytes), d[i], bias[i]);
      small_s[i] = __hmul2(s[i], __float2half2_rn(16.0f));
      m[i] = __hmul2(bytes_subnormal(bytes, kHighBytes), dmin[i]);
    }
    if (chunk + 1 < kBrickChunks) fetch(chunk + 1);
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    const std::uint32_t w = word_of(word, step), turned = __funnelshift_r(w, w, 8);
    const std::uint32_t code[4] = {w & 0x03c003c0u, w & 0x003c003cu, turned & 0x003c003cu,
                                   turned & 0x03c003c0u};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const half2 scale = i == 0 || i == 3 ? s[i & 1] : small_s[i & 1];
      a[i] = as_bits(
          __hfma2(as_half2(code[i]), broadcast(scale, step / 2), broadcast(m[i & 1], step / 2)));
    }
  }
};

/// Q6_K: [codes: warp][chunk][lane][words A, B of two k-steps, then of the next two], [warp][chunk]
/// [lane][word C of each], [scale words: 4 sc + 128], [rows: 2^15 d]. Bits 4..9 and 10..15 of
/// the halves of A, B and C are the codes of registers 0..3 of the first k-step and 0 and 1 of the
/// second; bits 0..3 of A and B the low bits of its registers 2 and 3, whose upper ones are bits
/// 0..1 and 2..3 of C. Weights / 32.
template <>
struct BrickReader<BrickKind::kQ6K> {
  const uint4* codes;
  const uint2* last_codes;
  const uint2* scales;
  half2 d[2];              // rows r, r + 8
  half2 s[2][2], m[2][2];  // four groups of the chunk, in pairs
  uint4 word, next_word;
  uint2 last_word, next_last_word, next_scales;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    last_codes = reinterpret_cast<const uint2*>(brick + 8192) + warp * 128 + lane;
    scales = scale_words(brick + 12288, warp, lane);
    const half2 both = reinterpret_cast<const half2*>(brick + 13312)[warp * 8 + lane / 4];
    fetch(0);
    d[0] = __low2half2(both);
    d[1] = __high2half2(both);
  }
  __device__ void fetch(int chunk) {
    next_word = codes[32 * chunk];
    next_last_word = last_codes[32 * chunk];
    next_scales = scales[8 * chunk];
  }
  __device__ void load(int chunk) {
    word = next_word;
    last_word = next_last_word;
    const half2 bias = __float2half2_rn(-1152.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t bytes = i & 1 ? next_scales.y : next_scales.x;
      const half2 sc = bytes_1024(bytes, i / 2 ? kHighBytes : kLowBytes);
      s[i & 1][i / 2] = __hmul2(__hadd2(sc, bias), d[i & 1]);
      m[i & 1][i / 2] = __hmul2(s[i & 1][i / 2], __float2half2_rn(-0x1p-15f));  // -32 codes
    }
    if (chunk + 1 < kBrickChunks) fetch(chunk + 1);
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    const std::uint32_t first = step / 2 ? word.z : word.x, second = step / 2 ? word.w : word.y;
    const std::uint32_t third = step / 2 ? last_word.y : last_word.x;
    const auto direct = [](std::uint32_t w) {
      return w & 0x03f003f0u;
    };
    const auto joined = [](std::uint32_t low, std::uint32_t high) {
      return and_or(low << 4, 0x00f000f0u, high & 0x03000300u);
    };
    std::uint32_t code[4];
    if (step % 2 == 0) {
      code[0] = direct(first);
      code[1] = direct(first >> 6);
      code[2] = direct(second);
      code[3] = direct(second >> 6);
    } else {
      code[0] = direct(third);
      code[1] = direct(third >> 6);
      code[2] = joined(first, third << 8);
      code[3] = joined(second, third << 6);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = as_bits(__hfma2(as_half2(code[i]), broadcast(s[i & 1][step / 2], step % 2),
                             broadcast(m[i & 1][step / 2], step % 2)));
    }
  }
};

}  // namespace tandem::kernels::cuda
