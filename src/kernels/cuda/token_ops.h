#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/step_state.h"

namespace tandem::kernels::cuda {

/// table[r][i] = (cos, sin) of position[r] * frequencies[i].
void rope_table(const DeviceRow* rows, int num_rows, const float* frequencies, int pairs, float2* table,
                cudaStream_t stream);

/// out[i][V] = softcapped logits of row i, ids in `suppressed` (a mask of V bits, may be null) at -inf.
void finish_logits(const Partials& p, int num_rows, int vocab, float softcap, const std::uint32_t* suppressed,
                   float* out, cudaStream_t stream);

/// tokens[i] = argmax of logits[i], the lowest id on ties.
void argmax_rows(const float* logits, int num_rows, int vocab, TokenId* tokens, cudaStream_t stream);

/// The likeliest tokens of a row, unordered: all whose logit reaches a value that at least `top_k` logits
/// reach. count > kMaxCandidates: there were more, the list is not complete.
constexpr int kMaxCandidates = 1024;
struct Candidates {
  std::int32_t count;
  TokenId ids[kMaxCandidates];
  float logits[kMaxCandidates];
};
void top_candidates(const float* logits, const std::int32_t* top_k, int num_rows, int vocab, Candidates* out,
                    cudaStream_t stream);

/// to[slots[i]] = from[rows[i]], rows of `cols` floats.
void copy_rows(const float* from, const std::int32_t* rows, float* to, const std::int32_t* slots, int num_rows,
               int cols, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
