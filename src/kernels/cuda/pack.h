#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tandem/core/status.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/weight_memory.h"
#include "tandem/kernels/weight.h"

namespace tandem::kernels::cuda {

/// Bytes of the bricks of a [rows, cols] matrix.
std::size_t packed_bytes(BrickKind kind, std::int64_t rows, std::int64_t cols);

/// A packed weight and the memory that it lies in.
struct PackedMatrix {
  WeightBuffer bricks, row_scales;
  MatrixView view;
};

/// What packing needs of the device meanwhile; kept between weights, since a model may have
/// thousands.
struct PackScratch {
  DeviceBuffer rows, out_of_range;
};

/// Packs a weight [N, K] into bricks, streaming it through bounded scratch memory: neither the host
/// nor the device ever holds a second copy. What leaves the range of kQ4K or kQ6K becomes kF16.
/// kResourceExhausted when the device is full.
core::Result<PackedMatrix> pack_bricks(const WeightView& weight, BrickKind kind,
                                       WeightMemory& memory, PackScratch& scratch);

/// out[r * cols + c] = W[tokens[r * stride]][c] * scale, exactly as the file's formula gives it.
void gather_rows(const MatrixView& table, const std::int32_t* tokens, int stride, int num_rows,
                 int cols, float scale, float* out, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
