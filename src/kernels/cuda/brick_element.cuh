#pragma once

// Single elements of bricks, for gathering table rows, and of file blocks, for packing. Slow and
// exact.

#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

__device__ inline float half_at(const std::uint8_t* p) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

/// Byte and shift of element's 4-bit code in the low plane that Q4K and Q6K bricks share.
struct NibbleAt {
  int byte, shift;
};
__host__ __device__ inline NibbleAt nibble_at(const FragmentSlot& f) {
  const int word = ((f.warp * 4 + f.step / 4) * 32 + f.lane) * 4 + f.step % 4;
  const int nibble = 4 * f.half + f.reg;
  return {4 * word + nibble / 2, nibble % 2 * 4};
}
/// Byte and shift of the upper two bits in a Q6K brick's second plane.
__host__ __device__ inline NibbleAt pair_at(const FragmentSlot& f) {
  const int word = ((f.warp * 2 + f.step / 8) * 32 + f.lane) * 4 + f.step % 8 / 2;
  const int bit = 16 * f.half + 2 * (4 * (f.step % 2) + f.reg);
  return {8192 + 4 * word + bit / 8, bit % 8};
}
__host__ __device__ inline int byte_at(const FragmentSlot& f) {  // Q8
  return ((f.warp * 8 + f.step / 2) * 32 + f.lane) * 16 + f.step % 2 * 8 + 2 * f.reg + f.half;
}
__host__ __device__ inline int e4m3_at(const FragmentSlot& f) {  // F8
  return ((f.warp * 8 + f.step / 2) * 32 + f.lane) * 16 + f.step % 2 * 8 + f.reg / 2 * 4 +
         2 * f.half + 1 - f.reg % 2;
}
__host__ __device__ inline int value_at(const FragmentSlot& f) {  // F16, in halves
  return ((f.warp * 16 + f.step) * 32 + f.lane) * 8 + 2 * f.reg + f.half;
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
      const NibbleAt at = nibble_at(f);
      const int code = brick[at.byte] >> at.shift & 15;
      const std::uint8_t* scales = brick + 8192 + 16 * row;
      const std::uint8_t* d = brick + 9216 + 4 * row;
      return half_at(d) * static_cast<float>(scales[k / 32]) * static_cast<float>(code) -
             half_at(d + 2) * static_cast<float>(scales[8 + k / 32]);
    }
    case BrickKind::kQ6K: {
      const NibbleAt low = nibble_at(f), high = pair_at(f);
      const int code = (brick[low.byte] >> low.shift & 15) | (brick[high.byte] >> high.shift & 3)
                                                                 << 4;
      const int sc = static_cast<int>(brick[12288 + 16 * row + k / 16]) - 128;
      return half_at(brick + 13312 + 2 * row) * static_cast<float>(sc) *
             static_cast<float>(code - 32);
    }
    case BrickKind::kQ8: {
      const int code = static_cast<int>(brick[byte_at(f)]) - 128;
      return half_at(brick + 16384 + 16 * row + 2 * (k / 32)) * static_cast<float>(code);
    }
    case BrickKind::kF8:
      return e4m3_value(brick[e4m3_at(f)]) * half_at(brick + 16384 + 4 * row + k / 128 * 2) /
             256.0f;
    case BrickKind::kFp4: {
      const NibbleAt at = nibble_at(f);
      return e2m1_value(brick[at.byte] >> at.shift & 15) *
             e4m3_value(brick[8192 + 16 * row + k / 16]) / 256.0f;
    }
    case BrickKind::kF16:
      return __half2float(reinterpret_cast<const half*>(brick)[value_at(f)]);
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
