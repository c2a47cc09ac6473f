#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {

/// out [rows, K] = x rounded to e4m3, the arithmetic of FP8-Dynamic (docs/kernels.md, "Weights with
/// scales"). kE4m3Rows and kE4m3Codes: codes and the scale of each row; kE4m3Blocks: of each 128
/// columns a scale of its own, so values relative to the row's, rounded to fp16 once more. out may
/// not be x. Returns out with its form.
HalfRows round_rows(const HalfRows& x, int rows, InputForm form, HalfRows out, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
