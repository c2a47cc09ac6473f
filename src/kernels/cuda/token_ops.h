#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/step_state.h"
#include "tandem/kernels/step.h"
#include "tandem/kernels/synthetic_acceptance.h"

namespace tandem::kernels::cuda {

/// (cos, sin) of position * frequency i of each row and kind of attention.
struct RopeTables {
  const float* frequencies[kNumAttentionKinds] = {};
  float2* table[kNumAttentionKinds] = {};  ///< [rows, pairs]
  int pairs[kNumAttentionKinds] = {};
};

/// Begins a step: the rows' RoPE tables, and no row is broken yet.
void begin_rows(const DeviceRow* rows, int num_rows, const RopeTables& rope, std::int32_t* broken,
                cudaStream_t stream);

/// tokens[i] = the id of the largest of row i's keys (GemmGroup::run_largest).
void largest_tokens(const unsigned long long* keys, int keys_per_row, int num_rows, int vocab,
                    TokenId* tokens, cudaStream_t stream);

/// What follows from the chosen tokens.
struct AcceptArguments {
  const StepCounts* counts = nullptr;
  const SampledSpan* spans = nullptr;
  const DeviceRow* rows = nullptr;  ///< of the step
  const TokenId* chosen = nullptr;  ///< [kept rows]
  const float* h = nullptr;         ///< [kept rows, cols]
  int cols = 0;
  float* hidden = nullptr;  ///< [slots, cols]
  DeviceRow* draft_rows = nullptr;
  RopeTables draft_rope;
  DeviceRow padding = {};  ///< what draft rows beyond the step's number become
  SyntheticAcceptance acceptance;
};

/// For every sampled span: accepts drafts while they equal the chosen token, as HostStep::accept()
/// does, copies the h row that predicted the next token to the slot, and lays out the span's draft
/// row. `blocks`: at least the spans and the draft rows, padding included.
void accept(const AcceptArguments& a, int blocks, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
