#pragma once

// How weights, activations and KV pages lie in device memory. Everything is stored in the order in
// which the tensor cores read it (mma.sync m16n8k16, PTX ISA "Matrix fragments"), so that a lane's
// share of a fragment is one 16-byte load and no swizzle or tensor map is needed.

#include <cuda_fp16.h>

#include <cstdint>

namespace tandem::kernels::cuda {

/// Packed form of a weight; chosen from its dtype at load, never by the number of rows.
enum class BrickKind : std::int32_t {
  kQ4K,   ///< 4-bit codes, 6-bit scales and offsets per 32 (Q4_K)
  kQ6K,   ///< 6-bit codes, 8-bit scales per 16 (Q6_K)
  kQ8,    ///< 8-bit codes, one fp16 scale per 32 (Q8_0, Q5_0, Q4_0, IQ4_NL: exact)
  kF8,    ///< e4m3 codes, one fp16 factor per 128 (F8_E4M3)
  kFp4,   ///< E2M1 codes, one e4m3 scale per 16 (NVFP4, MXFP4)
  kF16,   ///< fp16 values (all other types, rounded to fp16)
  kE4m3,  ///< e4m3 codes as they are (F8_E4M3 with scales of rows alone, where wgmma reads them)
};

// A brick is 64 outputs x 256 K. Bytes: codes, scales per row, fp16 scales of scales.
constexpr int kBrickRows = 64;
constexpr int kBrickCols = 256;
constexpr int kBrickChunks = 4;            ///< of 64 columns, the unit of expansion
constexpr int kTileRows = 2 * kBrickRows;  ///< outputs of a GEMM tile: two bricks side by side

__host__ __device__ constexpr int brick_bytes(BrickKind kind) {
  switch (kind) {
    case BrickKind::kQ4K:
      return 8192 + 1024 + 256;
    case BrickKind::kQ6K:
      return 8192 + 4096 + 1024 + 128;
    case BrickKind::kQ8:
      return 16384 + 1024;
    case BrickKind::kF8:
      return 16384 + 256;
    case BrickKind::kFp4:
      return 8192 + 1024;
    case BrickKind::kF16:
      return 32768;
    case BrickKind::kE4m3:
      return 16384;
  }
  return 0;
}

// Bricks of plain values, kF16 and kE4m3, consist of strips: 64 outputs x 128 bytes of K, in core
// matrices of 8 outputs x 16 bytes, as wgmma reads them (dense_products.cu).
constexpr int kStripCols = 128;  ///< bytes
constexpr int kStripBytes = kBrickRows * kStripCols;
/// Byte `col` of a row of a brick of plain values.
__host__ __device__ inline int strip_at(int row, int col) {
  return col / kStripCols * kStripBytes + row / 8 * 1024 + col % kStripCols / 16 * 128 +
         row % 8 * 16 + col % 16;
}

/// What a 1 in the fragments of a brick stands for: sums are times this.
__host__ __device__ constexpr float brick_unit(BrickKind kind) {
  return kind == BrickKind::kQ4K || kind == BrickKind::kQ6K ? 32.0f : 1.0f;
}

/// The place of W[row][k] in a brick's m16k16 A fragments: warp row/16; lane, register and half
/// within the k-step. Register i of a lane holds the pair (row r + 8 (i & 1), k = 2c + 8 (i / 2), k
/// + 1).
struct FragmentSlot {
  int warp, step, lane, reg, half;
};
__host__ __device__ inline FragmentSlot fragment_slot(int row, int k) {
  const int r = row % 16, j = k % 16;
  return {row / 16, k / 16, (r % 8) * 4 + j % 8 / 2, r / 8 + 2 * (j / 8), j % 2};
}

/// Index of element (row, k) of an activation matrix: core matrices of 8 rows x 8 K, which ldmatrix
/// and wgmma read, in the order [k / 256][row / 8][k / 8 % 32]; `row_tiles` = allocated rows / 8.
__host__ __device__ inline std::size_t activation_index(int row, int k, int row_tiles) {
  const std::size_t tile = static_cast<std::size_t>(k / 256) * row_tiles + row / 8;
  return tile * 2048 + k % 256 / 8 * 64 + row % 8 * 8 + k % 8;
}

/// Index of the code of element (row, k) in activations of InputForm::kE4m3Codes: strips of eight
/// rows, in the order [k / 128][row / 8].
__host__ __device__ inline std::size_t code_index(int row, int k, int row_tiles) {
  const std::size_t tile = static_cast<std::size_t>(k / kStripCols) * row_tiles + row / 8;
  return tile * 1024 + static_cast<std::size_t>(strip_at(row % 8, k % kStripCols));
}

/// To what a product's weights want its inputs rounded (kernels::WeightView::e4m3_group). Codes of
/// kE4m3Rows are stored as fp16 values, those of kE4m3Codes as themselves, for kE4m3 bricks.
enum class InputForm : std::int32_t { kHalf, kE4m3Rows, kE4m3Blocks, kE4m3Codes };
/// Rounded to e4m3 with one scale a row.
__host__ __device__ constexpr bool is_e4m3_rows(InputForm form) {
  return form == InputForm::kE4m3Rows || form == InputForm::kE4m3Codes;
}

/// Activations as the GEMM reads them: fp16 = value / scale[row]; the scale is a power of two, or
/// of rows rounded to e4m3 that of their codes. In kE4m3Codes `data` holds bytes (code_index()).
struct HalfRows {
  half* data = nullptr;
  float* scale = nullptr;  ///< [rows]
  int row_tiles = 0;       ///< allocated rows / 8
  int cols = 0;            ///< K; data is padded with zeros to a multiple of 256
  InputForm form = InputForm::kHalf;
};

constexpr int kPageTokens = 64;  ///< also the key block of attention

/// Index of K[key][dim] within the 64 x D block of one page, layer and KV head: the B fragments of
/// Q K^T.
__host__ __device__ inline int k_index(int key, int dim, int head_size) {
  const int j = dim % 16, lane = key % 8 * 4 + j % 8 / 2;
  return (key / 8 * (head_size / 32) + dim / 32) * 256 + lane * 8 + dim / 16 % 2 * 4 + j / 8 * 2 +
         j % 2;
}
/// Index of V[key][dim] within such a block: the B fragments of P V.
__host__ __device__ inline int v_index(int key, int dim) {
  const int j = key % 16, lane = dim % 8 * 4 + j % 8 / 2;
  return (dim / 8 * 2 + key / 32) * 256 + lane * 8 + key / 16 % 2 * 4 + j / 8 * 2 + j % 2;
}

__device__ inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline half2 as_half2(std::uint32_t v) {
  return *reinterpret_cast<half2*>(&v);
}
__device__ inline std::uint32_t as_bits(half2 v) {
  return *reinterpret_cast<std::uint32_t*>(&v);
}

}  // namespace tandem::kernels::cuda
