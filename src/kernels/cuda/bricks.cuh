#pragma once

// Expansion of brick codes to fp16 A fragments in registers. fp16 holds 1024 + code exactly, so
// codes are or-ed into the mantissa of 1024 and the bias is taken off exactly before the scale is
// applied with one rounding. (Folding the bias into the offset would round it at half a
// quantization step.)

#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

/// Two bytes of `word` as 1024 + byte.
__device__ inline half2 bytes_1024(std::uint32_t word, std::uint32_t selector) {
  return as_half2(__byte_perm(word, 0x64646464u, selector));
}
__device__ inline half2 broadcast(half2 v, int which) {
  return which ? __high2half2(v) : __low2half2(v);
}

/// (v & mask) | bits in one instruction; the compiler would take two when both are constants.
__device__ inline std::uint32_t and_or(std::uint32_t v, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(v), "r"(mask), "r"(bits));
  return out;
}

template <BrickKind kKind>
struct BrickReader;

/// Q4_K: [codes: warp][4 k-steps][lane][16 B], [scales: row][8 sc, 8 mn], [row][d, dmin].
/// Word of a k-step: nibble 4 e + i is element e of register i.
template <>
struct BrickReader<BrickKind::kQ4K> {
  half2 s[2][4], m[2][4];  // [row r, r + 8][two groups of 32]
  const uint4* codes;
  uint4 word;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    const half2 bias = __float2half2_rn(1024.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * i;
      const uint4 raw = *reinterpret_cast<const uint4*>(brick + 8192 + 16 * row);
      const half2 d = *reinterpret_cast<const half2*>(brick + 8192 + 1024 + 4 * row);
      const half2 scale = __low2half2(d), offset = __hneg2(__high2half2(d));
      const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const std::uint32_t selector = g % 2 ? 0x4342 : 0x4140;
        s[i][g] = __hmul2(__hsub2(bytes_1024(words[g / 2], selector), bias), scale);
        m[i][g] = __hmul2(__hsub2(bytes_1024(words[2 + g / 2], selector), bias), offset);
      }
    }
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    if (step % 4 == 0) word = codes[32 * (step / 4)];
    const std::uint32_t w = step % 4 == 0   ? word.x
                            : step % 4 == 1 ? word.y
                            : step % 4 == 2 ? word.z
                                            : word.w;
    const half2 bias = __float2half2_rn(-1024.0f), high_bias = __float2half2_rn(-64.0f);
    const half2 sixteenth = __float2half2_rn(0.0625f);
    const std::uint32_t v = w >> 8;
    const half2 q[4] = {
        __hadd2(as_half2(and_or(w, 0x000f000fu, 0x64006400u)), bias),
        __hfma2(as_half2(and_or(w, 0x00f000f0u, 0x64006400u)), sixteenth, high_bias),
        __hadd2(as_half2(and_or(v, 0x000f000fu, 0x64006400u)), bias),
        __hfma2(as_half2(and_or(v, 0x00f000f0u, 0x64006400u)), sixteenth, high_bias)};
    const int group = step / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = as_bits(__hfma2(q[i], broadcast(s[i & 1][group / 2], group % 2),
                             broadcast(m[i & 1][group / 2], group % 2)));
    }
  }
};

/// Q6_K: [low nibbles as Q4_K], [high bits: warp][8 k-steps][lane][16 B], [row][16 sc + 128],
/// [row][d]. High word of two k-steps: bits 2 (4 (step % 2) + i) of half e belong to element e of
/// register i.
template <>
struct BrickReader<BrickKind::kQ6K> {
  half2 s[2][8];  // [row r, r + 8][two groups of 16]
  const uint4 *codes, *high_codes;
  uint4 word, high_word;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    high_codes = reinterpret_cast<const uint4*>(brick + 8192) + warp * 64 + lane;
    const half2 bias = __float2half2_rn(1152.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * i;
      const uint4 raw = *reinterpret_cast<const uint4*>(brick + 12288 + 16 * row);
      const half2 d = __half2half2(*reinterpret_cast<const half*>(brick + 12288 + 1024 + 2 * row));
      const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int g = 0; g < 8; ++g) {
        s[i][g] = __hmul2(__hsub2(bytes_1024(words[g / 2], g % 2 ? 0x4342 : 0x4140), bias), d);
      }
    }
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    if (step % 4 == 0) word = codes[32 * (step / 4)];
    if (step % 8 == 0) high_word = high_codes[32 * (step / 8)];
    const std::uint32_t w = step % 4 == 0   ? word.x
                            : step % 4 == 1 ? word.y
                            : step % 4 == 2 ? word.z
                                            : word.w;
    const int h = step % 8 / 2;
    const std::uint32_t high = h == 0   ? high_word.x
                               : h == 1 ? high_word.y
                               : h == 2 ? high_word.z
                                        : high_word.w;
    const half2 bias = __float2half2_rn(-1056.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int bit = 2 * (4 * (step % 2) + i);
      const std::uint32_t top = bit >= 4 ? high >> (bit - 4) : high << (4 - bit);
      const std::uint32_t upper = and_or(top, 0x00300030u, 0x64006400u);
      const std::uint32_t code = and_or(w >> (4 * i), 0x000f000fu, upper);
      a[i] =
          as_bits(__hmul2(__hadd2(as_half2(code), bias), broadcast(s[i & 1][step / 2], step % 2)));
    }
  }
};

/// Q8: [codes + 128: warp][2 k-steps][lane][16 B], [row][8 fp16 scales of 32].
/// Byte 2 i + e of a k-step's 8 bytes is element e of register i.
template <>
struct BrickReader<BrickKind::kQ8> {
  half2 s[2][4];
  const uint4* codes;
  uint4 word;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 256 + lane;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * i;
      const uint4 raw = *reinterpret_cast<const uint4*>(brick + 16384 + 16 * row);
      s[i][0] = as_half2(raw.x);
      s[i][1] = as_half2(raw.y);
      s[i][2] = as_half2(raw.z);
      s[i][3] = as_half2(raw.w);
    }
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    if (step % 2 == 0) word = codes[32 * (step / 2)];
    const std::uint32_t w[2] = {step % 2 ? word.z : word.x, step % 2 ? word.w : word.y};
    const half2 bias = __float2half2_rn(-1152.0f);
    const int group = step / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const half2 q = __hadd2(bytes_1024(w[i / 2], i % 2 ? 0x4342 : 0x4140), bias);
      a[i] = as_bits(__hmul2(q, broadcast(s[i & 1][group / 2], group % 2)));
    }
  }
};

/// Two e4m3 codes in the upper bytes of the halves of t, as fp16 of 1/256 of their values: exact.
__device__ inline half2 e4m3_256(std::uint32_t t) {
  return as_half2(and_or(t, 0x80008000u, (t >> 1) & 0x3f803f80u));
}

/// F8: [codes: warp][2 k-steps][lane][16 B], [row][2 fp16 factors of 128, times 256]. Of a k-step's
/// two words, byte 2 e + 1 of word i / 2 is element e of its first register, byte 2 e of its second.
template <>
struct BrickReader<BrickKind::kF8> {
  half2 s[2];
  const uint4* codes;
  uint4 word;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 256 + lane;
    const half2* factors = reinterpret_cast<const half2*>(brick + 16384);
    s[0] = factors[16 * warp + lane / 4];
    s[1] = factors[16 * warp + lane / 4 + 8];
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    if (step % 2 == 0) word = codes[32 * (step / 2)];
    const std::uint32_t w[2] = {step % 2 ? word.z : word.x, step % 2 ? word.w : word.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const half2 q = e4m3_256(i % 2 ? w[i / 2] << 8 : w[i / 2]);
      a[i] = as_bits(__hmul2(q, broadcast(s[i & 1], step / 8)));
    }
  }
};

/// Fp4: [codes as Q4_K], [row][16 e4m3 scales]. An E2M1 code, moved, is an fp16 of 2^-14 of its
/// value; with a scale times 64 the product is exact: 2^-8 of the weight.
template <>
struct BrickReader<BrickKind::kFp4> {
  half2 s[2][8];  // [row r, r + 8][two groups of 16]
  const uint4* codes;
  uint4 word;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    const half2 unit = __float2half2_rn(16384.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * i;
      const uint4 raw = *reinterpret_cast<const uint4*>(brick + 8192 + 16 * row);
      const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int g = 0; g < 8; ++g) {
        s[i][g] =
            __hmul2(e4m3_256(__byte_perm(words[g / 2], 0, g % 2 ? 0x3424 : 0x1404)), unit);
      }
    }
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    if (step % 4 == 0) word = codes[32 * (step / 4)];
    const std::uint32_t w = step % 4 == 0   ? word.x
                            : step % 4 == 1 ? word.y
                            : step % 4 == 2 ? word.z
                                            : word.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t t = w << (12 - 4 * i);
      const half2 q = as_half2(and_or(t, 0x80008000u, (t >> 3) & 0x0e000e00u));
      a[i] = as_bits(__hmul2(q, broadcast(s[i & 1][step / 2], step % 2)));
    }
  }
};

/// F16: [warp][k-step][lane][4 registers].
template <>
struct BrickReader<BrickKind::kF16> {
  const uint4* values;

  __device__ void begin(const std::uint8_t* brick, int warp, int lane) {
    values = reinterpret_cast<const uint4*>(brick) + warp * 512 + lane;
  }
  __device__ void fragment(int step, std::uint32_t (&a)[4]) {
    const uint4 v = values[32 * step];
    a[0] = v.x;
    a[1] = v.y;
    a[2] = v.z;
    a[3] = v.w;
  }
};

}  // namespace tandem::kernels::cuda
