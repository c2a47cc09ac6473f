#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tandem/core/status.h"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/step_state.h"
#include "tandem/kernels/step.h"

namespace tandem::kernels::cuda {

/// Blocks that share a row, a cluster. The tokens are the same for every number.
struct SamplerShape {
  int ranks = 1;
  int tiles = 0;  ///< of the vocabulary, for a block
  std::size_t shared_bytes() const;
};
/// The most blocks that the device can place; kUnimplemented for a vocabulary too large.
core::Result<SamplerShape> sampler_shape(int vocab);

/// Softcapped logits of whole tiles [tile][max_rows][128], in the place of the head's sums.
struct LogitTiles {
  Partials sums;                                 ///< one part a tile, tile t in slot t
  float* data = nullptr;                         ///< the memory behind sums.data
  int vocab = 0;                                 ///< ids from here on: -inf
  float softcap = 0.0F, inverse_softcap = 0.0F;  ///< 0: none
  const std::uint32_t* suppressed = nullptr;     ///< a mask of V bits, ids at -inf; may be null
};

/// Turns sums into logits.
void finish_logits(const LogitTiles& t, int num_rows, cudaStream_t stream);

struct SampleArguments {
  LogitTiles logits;
  SamplerShape shape;
  const DeviceRow* rows = nullptr;
  const RowSampling* sampling = nullptr;  ///< of each row
  const LogitChange* changes = nullptr;   ///< of all rows
  const std::uint32_t* masks = nullptr;   ///< [masks, mask_words]
  int mask_words = 0;
  TokenId* chosen = nullptr;
};

/// chosen[i] = the token of row i as kernels::sample() chooses it from the row's logits by
/// sampling[i] for the position after rows[i]'s. Where that is greedy and no rule has a say, the
/// largest sum before the softcap, as largest_tokens(). Turns sums into logits on the way.
void sample_rows(const SampleArguments& a, int num_rows, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
