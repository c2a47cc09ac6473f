#pragma once

#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {

/// Widest rows of gated_rows().
constexpr int kMostGatedCols = 32768;

/// geglu() and gated_ple() (kernels/cuda/row_ops.h) whose output is rounded to e4m3 as round_rows()
/// does for out.form, of rows in codes, in one kernel and from f32: out[r] = e4m3(gelu_tanh(gate) *
/// up), `up` being the tiles from up_tile on, or, if `ple` is not null, ple[r * ple_stride + c].
void gated_rows(const Partials& p, int up_tile, const float* ple, int ple_stride, int rows,
                int cols, const HalfRows& out, std::int32_t* broken, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
