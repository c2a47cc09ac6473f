#pragma once

// Single elements of bricks, for gathering table rows, and of file blocks, for packing. Slow and
// exact.

#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

__device__ inline float half_at(const std::uint8_t* p) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

/// Bits of a code: `first` is the place of the lowest one in a 32-bit word of the brick, and beyond
/// the word's last bit comes its first.
struct BitsAt {
  int word, first;
};
__device__ inline int bits_at(const std::uint8_t* brick, BitsAt at, int mask) {
  const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(brick)[at.word];
  return static_cast<int>(__funnelshift_r(word, word, at.first)) & mask;
}
/// The word of a k-step in a plane of 4-bit codes.
__host__ __device__ inline int nibble_word(const FragmentSlot& f) {
  return ((f.warp * 4 + f.step / 4) * 32 + f.lane) * 4 + f.step % 4;
}
__host__ __device__ inline BitsAt q4k_at(const FragmentSlot& f) {
  constexpr int kFirst[4] = {6, 2, 10, 14};
  return {nibble_word(f), 16 * f.half + kFirst[f.reg]};
}
__host__ __device__ inline BitsAt fp4_at(const FragmentSlot& f) {
  return {nibble_word(f), 16 * f.half + 4 * f.reg};
}
/// The lower four and upper two bits of a Q6K code.
struct Q6KAt {
  BitsAt low, high;
};
__host__ __device__ inline Q6KAt q6k_at(const FragmentSlot& f) {
  const int chunk = (f.warp * 4 + f.step / 4) * 32 + f.lane, pair = f.step % 4 / 2;
  const int first = 4 * chunk + 2 * pair, last = 2048 + 2 * chunk + pair;  // words A and C
  const int side = f.reg / 2, bit = 16 * f.half;
  if (f.step % 2 == 1 && side == 1) {
    return {{first + f.reg % 2, bit}, {last, bit + 2 * (f.reg % 2)}};
  }
  const int word = f.step % 2 == 1 ? last : first + side;
  return {{word, bit + 4 + 6 * (f.reg % 2)}, {word, bit + 8 + 6 * (f.reg % 2)}};
}
/// Bytes into a brick's scale words, and into its row words.
__host__ __device__ inline int scale_word_at(int row, int chunk) {
  return (((row / 16 * 4 + chunk) * 8 + row % 8) * 2 + row / 8 % 2) * 4;
}
__host__ __device__ inline int row_at(int row) {  // in values of a row
  return (row / 16 * 8 + row % 8) * 2 + row / 8 % 2;
}
__host__ __device__ inline int byte_at(const FragmentSlot& f) {  // Q8
  return ((f.warp * 8 + f.step / 2) * 32 + f.lane) * 16 + f.step % 2 * 8 + 2 * f.reg + f.half;
}
__host__ __device__ inline int e4m3_at(const FragmentSlot& f) {  // F8
  return ((f.warp * 8 + f.step / 2) * 32 + f.lane) * 16 + f.step % 2 * 8 + f.reg / 2 * 4 +
         2 * f.half + 1 - f.reg % 2;
}

__device__ inline float e4m3_value(std::uint8_t code) {
  const int bits = (code & 0x80) << 8 | (code & 0x7f) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))) * 256.0f;
}
__device__ inline float e2m1_value(int code) {
  const int bits = (code & 8) << 12 | (code & 7) << 9;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))) * 16384.0f;
}

/// W[row][k] of a brick in f32, without the factor of its row.
__device__ inline float brick_value(BrickKind kind, const std::uint8_t* brick, int row, int k) {
  const FragmentSlot f = fragment_slot(row, k);
  switch (kind) {
    case BrickKind::kQ4K: {
      const std::uint8_t* scales = brick + 8192 + scale_word_at(row, k / 64);
      const std::uint8_t* d = brick + 9216 + 4 * row_at(row);
      const int group = k / 32 % 2;
      return half_at(d) * 0x1p-11f * static_cast<float>(scales[group] / 4) *
                 static_cast<float>(bits_at(brick, q4k_at(f), 15)) +
             half_at(d + 2) * 0x1p-17f * static_cast<float>(scales[2 + group] / 4);
    }
    case BrickKind::kQ6K: {
      const Q6KAt at = q6k_at(f);
      const int code = bits_at(brick, at.low, 15) | bits_at(brick, at.high, 3) << 4;
      const int sc = brick[12288 + scale_word_at(row, k / 64) + k / 16 % 4] - 128;
      return half_at(brick + 13312 + 2 * row_at(row)) * 0x1p-15f * static_cast<float>(sc) *
             static_cast<float>(code - 32);
    }
    case BrickKind::kQ8: {
      const int code = static_cast<int>(brick[byte_at(f)]) - 128;
      return half_at(brick + 16384 + scale_word_at(row, k / 64) + k / 32 % 2 * 2) *
             static_cast<float>(code);
    }
    case BrickKind::kF8:
      return e4m3_value(brick[e4m3_at(f)]) *
             half_at(brick + 16384 + 4 * row_at(row) + k / 128 * 2) / 256.0f;
    case BrickKind::kFp4:
      return e2m1_value(bits_at(brick, fp4_at(f), 15)) *
             e4m3_value(brick[8192 + scale_word_at(row, k / 64) + k / 16 % 4]) / 256.0f;
    case BrickKind::kF16:
      return half_at(brick + strip_at(row, 2 * k));
    case BrickKind::kE4m3:
      return e4m3_value(brick[strip_at(row, k)]);
  }
  return 0.0f;
}

/// Integer code of element i of a 32-element block with one fp16 scale in its first two bytes.
enum class ByteSource : std::int32_t { kQ8_0, kQ5_0, kQ4_0, kIQ4_NL };
__device__ inline int block_code(ByteSource source, const std::uint8_t* block, int i) {
  constexpr std::int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
  switch (source) {
    case ByteSource::kQ8_0:
      return static_cast<std::int8_t>(block[2 + i]);
    case ByteSource::kQ5_0: {
      const int low = block[6 + i % 16] >> (i / 16 * 4) & 15;
      return (low | (block[2 + i / 8] >> (i % 8) & 1) << 4) - 16;
    }
    case ByteSource::kQ4_0:
      return (block[2 + i % 16] >> (i / 16 * 4) & 15) - 8;
    case ByteSource::kIQ4_NL:
      return kValues[block[2 + i % 16] >> (i / 16 * 4) & 15];
  }
  return 0;
}

}  // namespace tandem::kernels::cuda
