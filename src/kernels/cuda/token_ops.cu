#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/token_ops.h"

namespace tandem::kernels::cuda {
namespace {

__device__ void rope_row(const RopeTables& rope, int row, Position position) {
  for (int kind = 0; kind < kNumAttentionKinds; ++kind) {
    for (int i = threadIdx.x; i < rope.pairs[kind]; i += blockDim.x) {
      float s, c;
      sincosf(static_cast<float>(position) * rope.frequencies[kind][i], &s, &c);
      rope.table[kind][static_cast<std::size_t>(row) * rope.pairs[kind] + i] = make_float2(c, s);
    }
  }
}

__global__ void rope_kernel(const DeviceRow* rows, RopeTables rope, std::int32_t* broken) {
  after_previous();
  if (threadIdx.x == 0) broken[blockIdx.x] = 0;
  rope_row(rope, blockIdx.x, rows[blockIdx.x].position);
}

__global__ void largest_kernel(const unsigned long long* keys, int count, int vocab,
                               TokenId* tokens) {
  __shared__ unsigned long long scratch[32];
  let_next_start();
  wait_for_previous();
  const unsigned long long* row = keys + static_cast<std::size_t>(blockIdx.x) * count;
  unsigned long long best = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) best = row[i] > best ? row[i] : best;
  best = block_reduce(best, scratch,
                      [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
  if (threadIdx.x == 0) tokens[blockIdx.x] = min(id_of_key(best), vocab - 1);
}

/// Drafts of a span that stay: those that equal the tokens chosen before them.
__device__ int accepted_drafts(const AcceptArguments& a, const SampledSpan& span) {
  if (a.acceptance.positions > 0) {
    return a.acceptance.accepted(span.slot, a.rows[span.first_row].position, span.num_rows - 1);
  }
  int accepted = 0;
  while (accepted + 1 < span.num_rows &&
         a.chosen[span.first_row + accepted] == a.rows[span.first_row + accepted + 1].token) {
    ++accepted;
  }
  return accepted;
}

__global__ void accept_kernel(AcceptArguments a) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x;
  if (i >= a.counts->draft_rows && threadIdx.x == 0) {
    a.draft_rows[i] = {a.padding.span, a.padding.slot, 0, 0, 0};
  }
  if (i >= a.counts->sampled_spans) return;
  const SampledSpan span = a.spans[i];
  const int last = span.first_row + accepted_drafts(a, span);
  const float* h = a.h + static_cast<std::size_t>(last) * a.cols;
  float* hidden = a.hidden + static_cast<std::size_t>(span.slot) * a.cols;
  for (int c = threadIdx.x; c < a.cols; c += blockDim.x) hidden[c] = h[c];
  if (span.draft_row < 0) return;
  const Position position = a.rows[last].position + 1;
  if (threadIdx.x == 0)
    a.draft_rows[span.draft_row] = {span.span, span.slot, a.chosen[last], position, position};
  rope_row(a.draft_rope, span.draft_row, position);
}

}  // namespace

void begin_rows(const DeviceRow* rows, int num_rows, const RopeTables& rope, std::int32_t* broken,
                cudaStream_t stream) {
  launch(rope_kernel, dim3(num_rows), 128, 0, stream, rows, rope, broken);
}

void largest_tokens(const unsigned long long* keys, int keys_per_row, int num_rows, int vocab,
                    TokenId* tokens, cudaStream_t stream) {
  launch(largest_kernel, dim3(num_rows), 256, 0, stream, keys, keys_per_row, vocab, tokens);
}

void accept(const AcceptArguments& a, int blocks, cudaStream_t stream) {
  launch(accept_kernel, dim3(blocks), 256, 0, stream, a);
}

}  // namespace tandem::kernels::cuda
