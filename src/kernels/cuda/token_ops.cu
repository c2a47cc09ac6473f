#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/token_ops.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kGroup = 64;  // logits behind one maximum

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

// A thread four ids, of a vocabulary that is padded to whole tiles.
__global__ void logits_kernel(Partials p, int vocab, float softcap, const std::uint32_t* suppressed,
                              float* out) {
  after_previous();
  const int row = blockIdx.y, first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (first >= vocab) return;
  const float4 sums = sum_parts(p, row, first / kTileRows, first % kTileRows);
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
  for (int i = 0; i < 4 && first + i < vocab; ++i) {
    const int id = first + i;
    float v = values[i];
    if (softcap > 0.0f) v = softcap * tanhf(v / softcap);
    if (suppressed != nullptr && (suppressed[id / 32] >> (id % 32) & 1)) v = -INFINITY;
    out[static_cast<std::size_t>(row) * vocab + id] = v;
  }
}

__global__ void largest_kernel(const unsigned long long* keys, int count, int vocab,
                               TokenId* tokens) {
  __shared__ unsigned long long scratch[32];
  after_previous();
  const unsigned long long* row = keys + static_cast<std::size_t>(blockIdx.x) * count;
  unsigned long long best = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) best = row[i] > best ? row[i] : best;
  best = block_reduce(best, scratch,
                      [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
  if (threadIdx.x == 0) tokens[blockIdx.x] = min(id_of_key(best), vocab - 1);
}

__global__ void candidates_kernel(const float* logits, const std::int32_t* top_k, int vocab,
                                  Candidates* out) {
  extern __shared__ std::uint32_t maxima[];  // ordered bits of the largest logit of each group
  __shared__ int scratch[32], found;
  after_previous();
  const float* row = logits + static_cast<std::size_t>(blockIdx.x) * vocab;
  const int groups = (vocab + kGroup - 1) / kGroup, wanted = min(top_k[blockIdx.x], vocab);
  for (int g = threadIdx.x / 32; g < groups; g += kThreads / 32) {
    std::uint32_t best = 0;
    for (int i = threadIdx.x % 32; i < kGroup; i += 32) {
      const int id = g * kGroup + i;
      if (id < vocab) best = max(best, static_cast<std::uint32_t>(order_key(row[id], id) >> 32));
    }
    best = __reduce_max_sync(0xffffffffu, best);
    if (threadIdx.x % 32 == 0) maxima[g] = best;
  }
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  // The largest value that at least `wanted` maxima reach; 0 (everything) when there are fewer
  // groups.
  std::uint32_t threshold = 0;
  if (wanted <= groups) {
    for (int bit = 31; bit >= 0; --bit) {
      const std::uint32_t tried = threshold | 1u << bit;
      int count = 0;
      for (int g = threadIdx.x; g < groups; g += blockDim.x) count += maxima[g] >= tried;
      count = block_reduce(count, scratch, [](int a, int b) { return a + b; });
      if (count >= wanted) threshold = tried;
    }
  }
  Candidates& mine = out[blockIdx.x];
  for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
    if (maxima[id / kGroup] < threshold || !(row[id] > -INFINITY)) continue;
    if (static_cast<std::uint32_t>(order_key(row[id], id) >> 32) < threshold) continue;
    const int at = atomicAdd(&found, 1);
    if (at < kMaxCandidates) {
      mine.ids[at] = id;
      mine.logits[at] = row[id];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) mine.count = found;
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
  after_previous();
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

void finish_logits(const Partials& p, int num_rows, int vocab, float softcap,
                   const std::uint32_t* suppressed, float* out, cudaStream_t stream) {
  launch(logits_kernel, dim3((vocab + 1023) / 1024, num_rows), 256, 0, stream, p, vocab, softcap,
         suppressed, out);
}

void largest_tokens(const unsigned long long* keys, int keys_per_row, int num_rows, int vocab,
                    TokenId* tokens, cudaStream_t stream) {
  launch(largest_kernel, dim3(num_rows), 256, 0, stream, keys, keys_per_row, vocab, tokens);
}

void top_candidates(const float* logits, const std::int32_t* top_k, int num_rows, int vocab,
                    Candidates* out, cudaStream_t stream) {
  const std::size_t smem =
      static_cast<std::size_t>((vocab + kGroup - 1) / kGroup) * sizeof(std::uint32_t);
  launch(candidates_kernel, dim3(num_rows), kThreads, smem, stream, logits, top_k, vocab, out);
}

void accept(const AcceptArguments& a, int blocks, cudaStream_t stream) {
  launch(accept_kernel, dim3(blocks), 256, 0, stream, a);
}

}  // namespace tandem::kernels::cuda
