#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

/// One 128-output tile: its bricks, superblock after superblock, two side by side.
struct TileDesc {
  const std::uint8_t* bricks = nullptr;
  BrickKind kind = BrickKind::kF16;
  std::int32_t unit_bytes = 0;  ///< of a tile's superblock: two bricks
};

/// Where the partial sums of a tile lie: `count` consecutive slots, in ascending K.
struct TileParts {
  std::int32_t first_slot = 0;
  std::int32_t count = 0;
};

/// The packed weight of one linear as the GEMM sees it; owned by the backend's weight.
struct MatrixView {
  const std::uint8_t* bricks = nullptr;
  BrickKind kind = BrickKind::kF16;
  int rows = 0;         ///< outputs; padded to whole tiles in memory
  int cols = 0;         ///< K; padded to whole superblocks
  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int superblocks() const { return (cols + kBrickCols - 1) / kBrickCols; }
};

/// Sums of a GEMM before they are added up: [slot][max_rows][128] f32. Output n of a matrix whose first
/// tile is t0 lies in tile t0 + n / 128.
struct Partials {
  const float* data = nullptr;
  const TileParts* parts = nullptr;  ///< [tiles], device memory
  const float* row_scale = nullptr;  ///< [rows] of the activations
  int max_rows = 0;
};

#ifdef __CUDACC__
/// y[row][128 * tile + n], the parts added in ascending K: one order, whoever computed them.
__device__ inline float sum_parts(const Partials& p, int row, int tile, int n) {
  const TileParts parts = p.parts[tile];
  const float* at = p.data + (static_cast<std::size_t>(parts.first_slot) * p.max_rows + row) * kTileRows + n;
  float sum = at[0];
  for (int i = 1; i < parts.count; ++i) sum += at[static_cast<std::size_t>(i) * p.max_rows * kTileRows];
  return sum * p.row_scale[row];
}
#endif

/// One to three matrices that share their input, multiplied in one launch. The cuts along K are
/// frozen here, from the shapes and the number of CTAs alone, so that a row's bits never depend on
/// the number of rows (docs/kernels.md, "CUDA").
class GemmGroup {
 public:
  /// `whole_tiles`: never cut a tile (for the head, whose outputs are many).
  static core::Result<GemmGroup> create(const std::vector<MatrixView>& matrices, int num_ctas,
                                        bool whole_tiles);

  /// partials of x [rows, K] times every matrix; `partials` holds slots() * max_rows * 128 floats.
  Partials run(const HalfRows& x, int rows, float* partials, int max_rows, cudaStream_t stream) const;

  int slots() const { return slots_; }
  /// First tile of matrix i.
  int first_tile(int i) const { return first_tile_[static_cast<std::size_t>(i)]; }

 private:
  DeviceBuffer tiles_, parts_;
  std::vector<int> first_tile_;
  int num_tiles_ = 0, superblocks_ = 0, ctas_ = 0, slots_ = 0, unit_bytes_ = 0;
  bool whole_tiles_ = false;
};

}  // namespace tandem::kernels::cuda
