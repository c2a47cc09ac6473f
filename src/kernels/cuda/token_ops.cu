#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/token_ops.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kGroup = 64;  // logits behind one maximum

__global__ void rope_kernel(const DeviceRow* rows, const float* frequencies, int pairs, float2* table) {
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    float s, c;
    sincosf(static_cast<float>(rows[blockIdx.x].position) * frequencies[i], &s, &c);
    table[static_cast<std::size_t>(blockIdx.x) * pairs + i] = make_float2(c, s);
  }
}

__global__ void logits_kernel(Partials p, int vocab, float softcap, const std::uint32_t* suppressed, float* out) {
  const int row = blockIdx.y, id = blockIdx.x * blockDim.x + threadIdx.x;
  if (id >= vocab) return;
  float v = sum_parts(p, row, id / kTileRows, id % kTileRows);
  if (softcap > 0.0f) v = softcap * tanhf(v / softcap);
  if (suppressed != nullptr && (suppressed[id / 32] >> (id % 32) & 1)) v = -INFINITY;
  out[static_cast<std::size_t>(row) * vocab + id] = v;
}

/// Larger for larger logits and, among equal ones, for lower ids.
__device__ unsigned long long order_key(float logit, int id) {
  const std::uint32_t bits = __float_as_uint(logit);
  const std::uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

__global__ void argmax_kernel(const float* logits, int vocab, TokenId* tokens) {
  __shared__ unsigned long long scratch[32];
  const float* row = logits + static_cast<std::size_t>(blockIdx.x) * vocab;
  unsigned long long best = 0;
  for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
    const unsigned long long key = order_key(row[id], id);
    best = key > best ? key : best;
  }
  best = block_reduce(best, scratch, [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
  if (threadIdx.x == 0) tokens[blockIdx.x] = static_cast<TokenId>(0xffffffffu - static_cast<std::uint32_t>(best));
}

__global__ void candidates_kernel(const float* logits, const std::int32_t* top_k, int vocab, Candidates* out) {
  extern __shared__ std::uint32_t maxima[];  // ordered bits of the largest logit of each group
  __shared__ int scratch[32], found;
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
  // The largest value that at least `wanted` maxima reach; 0 (everything) when there are fewer groups.
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

__global__ void copy_rows_kernel(const float* from, const std::int32_t* rows, float* to, const std::int32_t* slots,
                                 int cols) {
  const float* source = from + static_cast<std::size_t>(rows[blockIdx.x]) * cols;
  float* target = to + static_cast<std::size_t>(slots[blockIdx.x]) * cols;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) target[c] = source[c];
}

}  // namespace

void rope_table(const DeviceRow* rows, int num_rows, const float* frequencies, int pairs, float2* table,
                cudaStream_t stream) {
  rope_kernel<<<num_rows, 128, 0, stream>>>(rows, frequencies, pairs, table);
}

void finish_logits(const Partials& p, int num_rows, int vocab, float softcap, const std::uint32_t* suppressed,
                   float* out, cudaStream_t stream) {
  logits_kernel<<<dim3((vocab + 255) / 256, num_rows), 256, 0, stream>>>(p, vocab, softcap, suppressed, out);
}

void argmax_rows(const float* logits, int num_rows, int vocab, TokenId* tokens, cudaStream_t stream) {
  argmax_kernel<<<num_rows, kThreads, 0, stream>>>(logits, vocab, tokens);
}

void top_candidates(const float* logits, const std::int32_t* top_k, int num_rows, int vocab, Candidates* out,
                    cudaStream_t stream) {
  const std::size_t smem = static_cast<std::size_t>((vocab + kGroup - 1) / kGroup) * sizeof(std::uint32_t);
  candidates_kernel<<<num_rows, kThreads, smem, stream>>>(logits, top_k, vocab, out);
}

void copy_rows(const float* from, const std::int32_t* rows, float* to, const std::int32_t* slots, int num_rows,
               int cols, cudaStream_t stream) {
  copy_rows_kernel<<<num_rows, 256, 0, stream>>>(from, rows, to, slots, cols);
}

}  // namespace tandem::kernels::cuda
