#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/gemm.h"

namespace tandem::kernels::cuda {

/// The brick kind that holds a dtype: block types of matching structure keep their codes,
/// everything else becomes fp16.
BrickKind brick_kind(core::DType dtype);

/// Bytes of the bricks of a [rows, cols] matrix.
std::size_t packed_bytes(BrickKind kind, std::int64_t rows, std::int64_t cols);

/// Packs a file tensor [N, K] into bricks, streaming it through a bounded staging buffer: neither
/// the host nor the device ever holds a second copy. Fails with kResourceExhausted when the device
/// is full.
core::Result<DeviceBuffer> pack_bricks(const core::TensorView& view, BrickKind kind);

/// out[r * cols + c] = W[tokens[r * stride]][c] * scale, exactly as the file's formula gives it.
void gather_rows(const MatrixView& table, const std::int32_t* tokens, int stride, int num_rows,
                 int cols, float scale, float* out, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
