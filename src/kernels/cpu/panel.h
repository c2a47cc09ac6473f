#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"

// What the kernels of all instruction sets see: plain data, no virtual call, no inline function.
// A file that is compiled for an instruction set must not emit code that others could link, so it
// includes this header and none that defines functions.

namespace tandem::kernels::cpu {

/// Outputs of one panel: the lanes of the kernels.
inline constexpr int kPanelRows = 16;
/// Bytes of a vector of a panel: one 4-byte word of each of the 16 rows.
inline constexpr int kVectorBytes = 64;

/// Quantization of activations: groups whose largest magnitude is below this are all zero (their
/// reciprocal would overflow); at or above kInfinityBits (as bits) they are not finite.
inline constexpr float kSmallestMagnitude = 0x1p-100F;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

/// A matrix [rows, cols] in 16-row panels. A panel of a block-quantized type is the file's blocks
/// of its 16 rows, transposed word by word: vector j of block b holds word j (4 bytes) of block b
/// of each row, so the panel is [cols / block][words][16 rows][4 bytes]. Blocks that are not whole
/// words keep their f16 scale apart, after all vectors: [cols / block][16 rows] f16. Three
/// changes make decoding cheap: the codes of Q8_0 are stored plus 128; bit 4s + c of the fifth bits
/// of Q5_0 and Q5_1 is stored as bit 8c + s; the vectors of Q3_K, Q5_K and Q6_K lie in the order of
/// their use. A panel of a plain type is [cols][16 rows], that of F8_E4M3 with
/// [cols / scale_cols][16 rows] f32 scales behind all columns. Rows beyond `rows` are zero bytes.
struct PanelMatrix {
  core::DType dtype = core::DType::kF32;
  int rows = 0;
  int cols = 0;
  const std::byte* data = nullptr;
  std::size_t panel_stride = 0;  ///< bytes from panel to panel, a multiple of 64
  std::size_t side_offset = 0;   ///< of the scales that are kept apart, from the panel's start
  int scale_cols = 0;            ///< F8_E4M3: columns that share a weight's scale
  int e4m3_group = 0;            ///< F8_E4M3: of the activations, a multiple of scale_cols or 0
  float output_scale = 1.0F;     ///< every output is multiplied by it, at last
};

/// Columns that share one activation scale: 32 or 128 (a row's last group may then be shorter).
/// With 128 the K-quants have scalar kernels only.
inline constexpr int kGroup = 32;
static_assert(kGroup == 32 || kGroup == 128);

/// 32 activations of a row: codes in [-127, 127], the f32 scale of the kGroup columns that they
/// belong to, and sums of codes, negated, as offset formats and formats with minima want them.
struct alignas(16) CodeGroup {
  std::int8_t codes[32];
  float scale;
  std::int32_t minus_sum;       ///< -(sum of all 32)
  std::int32_t minus_sum16[2];  ///< of each half
};

/// A group that is a whole row.
inline constexpr int kWholeRow = 1 << 30;

/// Forms of activations that a weight is multiplied with, beside the f32 values themselves.
struct InputForms {
  bool codes = false;  ///< int8 in CodeGroups
  /// Columns that share a scale in the form rounded to e4m3; 0: not wanted.
  int e4m3_group = 0;
};

/// Activations [rows, cols] in all forms; a kernel reads the one that its weight asks for.
struct Activations {
  const CodeGroup* codes = nullptr;  ///< [rows][cols / 32]
  std::size_t codes_stride = 0;      ///< groups from row to row
  const float* x = nullptr;          ///< [rows][cols]
  std::size_t x_stride = 0;          ///< elements from row to row
  const float* rounded = nullptr;    ///< [rows][cols] e4m3 values: x / scale, rounded
  std::size_t rounded_stride = 0;
  const float* scales = nullptr;  ///< [rows][cols / e4m3_group]
  std::size_t scales_stride = 0;
};

/// Rows [0, num_rows) by panels [panel_begin, panel_end).
struct Tile {
  int num_rows = 0;
  int panel_begin = 0;
  int panel_end = 0;
};

/// Rounding of activations to e4m3: the largest value, the smallest scale, and what weights are
/// stored divided by (their bits are then those of an f16; the scale makes up for it).
inline constexpr float kE4m3Max = 448.0F;
inline constexpr float kE4m3SmallestScale = 1.0F / (448.0F * 512.0F);
inline constexpr float kE4m3WeightUnit = 256.0F;

struct Int8AttentionBlock;  // simd/attention_block.h

/// The entry points of one instruction set.
struct IsaKernels {
  void (*quantize_row)(const float* x, int cols, CodeGroup* out);
  float (*round_e4m3)(const float* x, int n, float* out);  ///< returns the scale
  void (*matmul)(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                 std::size_t ld);
  void (*attend_int8)(const Int8AttentionBlock& block);
};

void attend_int8_scalar(const Int8AttentionBlock& block);

extern const IsaKernels kScalarKernels;
#if defined(__x86_64__)
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const IsaKernels kNeonKernels;
#endif

}  // namespace tandem::kernels::cpu
