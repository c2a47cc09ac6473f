#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {

/// The per-layer-embedding block of a layer, x = (x + rms(projection(gelu_tanh(gate x) * ple)) *
/// post_norm) * scale, which begins with what the block before it has left to add.
struct PleBlock {
  Residual before;
  MatrixView gate;             ///< [P, E]
  MatrixView projection;       ///< [E, P]
  const float* ple = nullptr;  ///< of the layer: row r at ple + r * ple_stride, [P]
  int ple_stride = 0;
  const float* post_norm = nullptr;  ///< [E]
  float scale = 1.0f;
};

/// The most rows that it runs at once, eight a cluster: 0 where P > 256, E <= 256 (a block alone
/// is no cluster to send messages in), E > 4096, the blocks' shared memory does not hold both
/// matrices, or the device cannot place such a cluster. More rows take the kernels of row_ops.h
/// and gemm.h, whose results have the same bits.
int ple_block_rows(const MatrixView& gate, const MatrixView& projection);

/// Runs the block on x [rows, E]; then out and plain as residual_norm() leaves them, where given.
void ple_block(const PleBlock& b, float* x, int rows, int cols, float eps, const float* norm,
               const HalfRows& out, float* plain, std::int32_t* broken, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
