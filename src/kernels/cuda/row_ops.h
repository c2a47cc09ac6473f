#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/step_state.h"

namespace tandem::kernels::cuda {

// Elementwise and normalizing kernels: each adds up the partial sums of the GEMM before it and
// writes the fp16 input of the GEMM after it. All reductions have one fixed order. Launchers only
// enqueue.

/// What still has to be added to the residual stream.
struct Residual {
  Partials delta;  ///< data null: nothing pending
  int first_tile = 0;
  const float* post_norm = nullptr;  ///< [E]; null: delta as it is
  float scale = 1.0f;                ///< of the sum
  bool replace = false;              ///< x = delta instead of x += delta
};

/// x [rows, E] = (x + rms(delta) * post_norm) * scale; then out = rms(x) * norm (norm null: x) in
/// fp16 with a power-of-two scale per row, or as out.form says in e4m3 codes, if out.data. `plain`:
/// the same rows in f32, if not null. A row that is not finite sets its word of `broken`. Where
/// norm is null and a delta is pending, the scale may leave more room than the row's largest value
/// needs.
void residual_norm(const Residual& residual, float* x, int rows, int cols, float eps,
                   const float* norm, const HalfRows& out, float* plain, std::int32_t* broken,
                   cudaStream_t stream);

/// out[r][f] = gelu_tanh(gate) * up, tiles of `up` start at up_tile. Stored / 64,
/// saturating, which breaks the row.
void geglu(const Partials& p, int up_tile, int rows, int cols, const HalfRows& out,
           std::int32_t* broken, cudaStream_t stream);

/// out[r][c] = gelu_tanh(gate) * ple[r * ple_stride + c].
void gated_ple(const Partials& p, const float* ple, int ple_stride, int rows, int cols,
               const HalfRows& out, std::int32_t* broken, cudaStream_t stream);

/// ple[r][l * P + c] = (rms_P(p * E^-0.5) * norm + ple) / sqrt 2; on entry ple holds the token
/// part.
void combine_ple(const Partials& p, const float* norm, float input_scale, float eps, int rows,
                 int layers, int width, float* ple, cudaStream_t stream);

/// out = concat(embedding[r], hidden of the row's slot) in fp16; both [E] f32.
void concat_draft_input(const float* embedding, const float* hidden, const DeviceRow* rows,
                        int num_rows, int cols, const HalfRows& out, cudaStream_t stream);

/// dst[slot of row r] = the summed rows of p, [E].
void store_hidden(const Partials& p, const DeviceRow* rows, int num_rows, int cols, float* dst,
                  cudaStream_t stream);

}  // namespace tandem::kernels::cuda
