#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

/// A matrix's 128-output tiles, from `first_tile` of its group on: their bricks, superblock after
/// superblock, two side by side.
struct TileRange {
  const std::uint8_t* bricks = nullptr;
  std::int32_t first_tile = std::numeric_limits<std::int32_t>::max();  ///< no tile is in the range
  BrickKind kind = BrickKind::kF16;
  std::int32_t unit_bytes = 0;        ///< of a tile's superblock: two bricks
  const float* row_scales = nullptr;  ///< [tiles * 128] of the outputs; null: all ones
};
constexpr int kRowBlock =
    128;  ///< rows of the largest schedule: activations are allocated in whole blocks
constexpr int kMaxGroup = 3;  ///< matrices of a group

/// Where the partial sums of a tile lie: `count` slots in a row, in ascending K. Where parts are
/// added in pairs and the first half of the first pair belongs to the tile before, `lacks_first`:
/// its slot counts and is not read.
struct TileParts {
  std::int32_t first_slot = 0;
  std::int16_t count = 0;
  std::int16_t lacks_first = 0;
};

/// The packed weight of one linear as the GEMM sees it; owned by the backend's weight.
struct MatrixView {
  const std::uint8_t* bricks = nullptr;
  BrickKind kind = BrickKind::kF16;
  int rows = 0;                       ///< outputs; padded to whole tiles in memory
  int cols = 0;                       ///< K; padded to whole superblocks
  const float* row_scales = nullptr;  ///< [tiles * 128] factors of the outputs; null: all ones
  InputForm input = InputForm::kHalf;
  __host__ __device__ int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  __host__ __device__ int superblocks() const { return (cols + kBrickCols - 1) / kBrickCols; }
};

/// Sums of a GEMM before they are added up: [slot][max_rows][128] f32. Output n of a matrix whose
/// first tile is t0 lies in tile t0 + n / 128.
struct Partials {
  const float* data = nullptr;
  const TileParts* parts = nullptr;  ///< [tiles], device memory
  const float* row_scale = nullptr;  ///< [rows] of the activations
  const float* zeros = nullptr;      ///< [128], read for parts that are not there
  int max_rows = 0;
  bool in_pairs = false;  ///< two parts are added up before they are added to those before
};

/// Where a product whose largest outputs alone matter leaves them: keys (order_key) of the
/// likeliest id that each warp saw in each run. Ids in `suppressed` (a mask of V bits, may be null)
/// and ids >= vocab never win.
struct LargestOutputs {
  unsigned long long* keys = nullptr;  ///< [rows rounded up to kRowBlock][keys_per_row()]
  const std::uint32_t* suppressed = nullptr;
  int vocab = 0;
};

#ifdef __CUDACC__
/// Four columns of a row in the parts of a tile, to be taken kAhead at a time.
struct QuadParts {
  const float4 *first, *at;  // the next part, and where its place is
  int step, left;            // quads between parts; how many there are

  /// Columns n .. n + 3, n a multiple of 4.
  __device__ QuadParts(const Partials& p, TileParts parts, int row, int n)
      : at(reinterpret_cast<const float4*>(p.data) +
           (parts.first_slot * p.max_rows + row) * (kTileRows / 4) + n / 4),
        step(p.max_rows * (kTileRows / 4)),
        left(parts.count) {
    first = parts.lacks_first ? reinterpret_cast<const float4*>(p.zeros) + n / 4 : at;
  }
  /// The next kAhead, all in flight at once; those that are not there stay as they are.
  template <int kAhead>
  __device__ void take(float4 (&part)[kAhead]) {
    if (left > 0) part[0] = *first;
#pragma unroll
    for (int i = 1; i < kAhead; ++i) {
      if (i < left) part[i] = at[i * step];
    }
    asm volatile("" ::: "memory");  // else the compiler adds some before it loads the others
    at += kAhead * step;
    first = at;
  }
};

__device__ inline void add_quad(float4& sum, float4 v) {
  sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
}
/// Adds `count` parts to a sum, or kAhead if there are more, in ascending order.
template <int kAhead>
__device__ inline void add_parts(bool in_pairs, float4 (&part)[kAhead], int count, float4& sum) {
  static_assert(kAhead % 2 == 0, "parts come in pairs");
  if (in_pairs) {
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {
      if (i + 1 < count) add_quad(part[i], part[i + 1]);
      if (i < count) add_quad(sum, part[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < count) add_quad(sum, part[i]);
    }
  }
}

/// y[row][128 * tile + n .. + 3], n a multiple of 4, the parts added in ascending K: one order,
/// whoever computed them. `parts` = p.parts[tile], which may be read before the product has ended.
/// Loads of eight parts are in flight at once.
__device__ inline float4 sum_parts(const Partials& p, TileParts parts, int row, int n) {
  const float scale = p.row_scale[row];
  QuadParts quad(p, parts, row, n);
  float4 sum = {};
  float4 part[8];
#pragma unroll 1
  for (; quad.left > 0; quad.left -= 8) {
    quad.take(part);
    add_parts(p.in_pairs, part, quad.left, sum);
  }
  return {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
}
__device__ inline float4 sum_parts(const Partials& p, int row, int tile, int n) {
  return sum_parts(p, p.parts[tile], row, n);
}
#endif

/// Whether the device has the instruction that kE4m3 bricks are for.
bool has_wgmma();

/// Readies every schedule for its largest shared memory. Once, before the first product.
core::Status prepare_gemm();

/// One to three matrices that share their input, multiplied in one launch. The cuts along K are
/// frozen here, from the shapes and the number of CTAs alone, so that a row's bits never depend on
/// the number of rows (docs/kernels.md, "CUDA").
class GemmGroup {
 public:
  /// `whole_tiles`: never cut a tile (for the head, whose outputs are many).
  /// kUnimplemented where they want their inputs rounded in different ways.
  static core::Result<GemmGroup> create(const std::vector<MatrixView>& matrices, int num_ctas,
                                        bool whole_tiles);

  /// What its inputs must be rounded to, alike for all its matrices.
  InputForm input() const { return input_; }

  /// partials of x [rows, K] times every matrix; `partials` holds slots() * max_rows * 128 floats.
  Partials run(const HalfRows& x, int rows, float* partials, int max_rows,
               cudaStream_t stream) const;

  /// The largest outputs of every row instead of all; for groups of one matrix made with
  /// whole_tiles.
  void run_largest(const HalfRows& x, int rows, const LargestOutputs& out,
                   cudaStream_t stream) const;
  int keys_per_row() const { return keys_per_row_; }

  int slots() const { return slots_; }
  /// First tile of matrix i.
  int first_tile(int i) const { return ranges_[static_cast<std::size_t>(i)].first_tile; }

 private:
  core::Status keep(std::vector<TileParts> parts, const std::vector<TileParts>& pairs);
  // Places in parts_ of [128] zeros, aligned, and of the TileParts of pairs.
  int zeros_at() const { return (num_tiles_ + 1) / 2 * 2; }
  int pairs_at() const { return zeros_at() + kTileRows * 4 / static_cast<int>(sizeof(TileParts)); }

  DeviceBuffer parts_;  // TileParts of the tiles, then zeros, then TileParts of pairs
  std::array<TileRange, kMaxGroup> ranges_;
  int num_matrices_ = 0;
  int num_tiles_ = 0, superblocks_ = 0, runs_ = 0, slots_ = 0, unit_bytes_ = 0, keys_per_row_ = 0;
  bool whole_tiles_ = false, in_pairs_ = false;
  InputForm input_ = InputForm::kHalf;
};

}  // namespace tandem::kernels::cuda
