#pragma once

// A row of the head's outputs, shared by the blocks of a cluster: what the passes of the sampler
// (sampler.cu) have in common, and the first of them, which makes sums logits.

#include "tandem/kernels/cuda/cluster.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_math.cuh"
#include "tandem/kernels/cuda/sampler.h"
#include "tandem/kernels/sampling_math.h"

namespace tandem::kernels::cuda {

using Mass = unsigned long long;

constexpr int kThreads = 512;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;

/// What a block adds up, where the others of its cluster read it.
struct Totals {
  Mass key;                 // order_key of the largest sum
  Mass mass;                // of the kept tokens beyond the edge
  std::uint32_t max, ties;  // the largest logit, ordered; tokens at the edge
};

struct Shared {
  alignas(16) std::uint32_t low[kBins], high[kBins];  // amounts by bin; 64 bits in two words
  Totals totals;
  Mass scratch[32];
  Mass above;  // what lies above the found bin
  std::uint32_t bin;
};
/// Behind Shared: masses [tiles] and numbers of ties [tiles].

/// The order of floats as that of integers. Needs no -0.
__device__ inline std::uint32_t ordered(float v) {
  const std::uint32_t bits = __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(std::uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ inline Mass load_remote(const Mass* local, int rank) {
  Mass v;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(remote_address(local, rank)));
  return v;
}
__device__ inline std::uint32_t load_remote(const std::uint32_t* local, int rank) {
  std::uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote_address(local, rank)));
  return v;
}
__device__ inline uint4 load_remote4(const std::uint32_t* local, int rank) {
  uint4 v;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(remote_address(local, rank)));
  return v;
}

template <typename T>
__device__ T add(T a, T b) {
  return a + b;
}
template <typename T>
__device__ T larger(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
__device__ T warp_sum(T v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
/// Of this lane and those before it.
template <typename T>
__device__ T warp_running_sum(T v) {
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, v, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) v += other;
  }
  return v;
}

__device__ inline float finished(const LogitTiles& t, float sum, int id) {
  if (t.softcap > 0.0f) sum = t.softcap * tanhf(sum * t.inverse_softcap);
  const bool is_never =
      id >= t.vocab || (t.suppressed != nullptr && (t.suppressed[id / 32] >> (id % 32) & 1));
  return is_never ? -INFINITY : sum + 0.0f;  // no -0
}
__device__ inline float4 load_sums(const LogitTiles& t, int row, int tile, int n) {
  return sum_parts(t.sums, TileParts{tile, 1}, row, n);
}
__device__ inline float* logits_at(const LogitTiles& t, int row, int tile, int n) {
  return t.data + (static_cast<std::size_t>(tile) * t.sums.max_rows + row) * kTileRows + n;
}

/// A block's part of a row.
struct Part {
  const SampleArguments& a;
  Shared& s;
  Mass* masses;                 // [tiles]
  std::uint32_t* ties;          // [tiles]
  int rank, row, first, count;  // tiles

  __device__ Part(const SampleArguments& arguments, std::uint8_t* smem)
      : a(arguments), s(*reinterpret_cast<Shared*>(smem)) {
    masses = reinterpret_cast<Mass*>(smem + sizeof(Shared));
    ties = reinterpret_cast<std::uint32_t*>(masses + a.shape.tiles);
    rank = blockIdx.x;
    row = blockIdx.y;
    const int all = (a.logits.vocab + kTileRows - 1) / kTileRows;
    first = min(rank * a.shape.tiles, all);
    count = min(a.shape.tiles, all - first);
  }
  /// f(tile of this block, its four logits of this lane), a warp a tile.
  template <typename F>
  __device__ void for_tiles(F f) const {
    const int n = 4 * (threadIdx.x % 32), t0 = threadIdx.x / 32, step = kThreads / 32;
    if (t0 >= count) return;
    float4 next = load4(logits_at(a.logits, row, first + t0, n));
    for (int t = t0; t < count; t += step) {
      const float logits[4] = {next.x, next.y, next.z, next.w};
      if (t + step < count) next = load4(logits_at(a.logits, row, first + t + step, n));
      f(t, logits);
    }
  }
};

/// The largest sum, or where a rule has changed the logits the largest of those, and the largest
/// logit.
struct Largest {
  Mass key = order_key(-INFINITY, 0);
  std::uint32_t max = 0;

  __device__ void take(float by, float logit, int id) {
    if (!(logit > -INFINITY)) return;
    key = larger(key, order_key(by, id));
    max = larger(max, ordered(logit));
  }
};

/// Applies a row's rule to the part's logits.
__device__ inline Largest apply_rule(const Part& p, const RowSampling& r) {
  __syncthreads();  // the logits are there
  for (int c = threadIdx.x; c < r.num_changes; c += kThreads) {
    const LogitChange change = p.a.changes[r.first_change + c];
    const int tile = change.token / kTileRows;
    if (tile < p.first || tile >= p.first + p.count) continue;
    float* const logit = logits_at(p.a.logits, p.row, tile, change.token % kTileRows);
    *logit = changed(*logit, change) + 0.0f;  // no -0
  }
  __syncthreads();
  const std::uint32_t* mask =
      r.mask < 0 ? nullptr : p.a.masks + std::size_t{1} * r.mask * p.a.mask_words;
  Largest largest;
  p.for_tiles([&](int t, const float(&from)[4]) {
    const int n = 4 * (threadIdx.x % 32), first_id = (p.first + t) * kTileRows + n;
    float logits[4];
    for (int i = 0; i < 4; ++i) {
      const int id = first_id + i;
      const bool may =
          mask == nullptr || (id < p.a.logits.vocab && (mask[id / 32] >> (id % 32) & 1));
      logits[i] = may ? from[i] : -INFINITY;
      largest.take(logits[i], logits[i], id);
    }
    store4(logits_at(p.a.logits, p.row, p.first + t, n),
           {logits[0], logits[1], logits[2], logits[3]});
  });
  return largest;
}

/// Turns the part's sums into logits. Returns the row's totals so far: key and max.
__device__ inline Totals finish_part(const Part& p, const RowSampling& sampling) {
  Largest largest;
  for (int t = threadIdx.x / 32; t < p.count; t += kThreads / 32) {
    const int tile = p.first + t, n = 4 * (threadIdx.x % 32);
    const float4 v = load_sums(p.a.logits, p.row, tile, n);
    const float sums[4] = {v.x, v.y, v.z, v.w};
    float logits[4];
    for (int i = 0; i < 4; ++i) {
      const int id = tile * kTileRows + n + i;
      logits[i] = finished(p.a.logits, sums[i], id);
      largest.take(sums[i], logits[i], id);
    }
    store4(logits_at(p.a.logits, p.row, tile, n), {logits[0], logits[1], logits[2], logits[3]});
  }
  if (sampling.has_rule()) largest = apply_rule(p, sampling);
  const Mass key = block_reduce(largest.key, p.s.scratch, larger<Mass>);
  const Mass max = block_reduce(Mass{largest.max}, p.s.scratch, larger<Mass>);
  if (threadIdx.x == 0) {
    p.s.totals.key = key;
    p.s.totals.max = static_cast<std::uint32_t>(max);
  }
  cluster_sync();
  Totals row = {};
  for (int r = 0; r < p.a.shape.ranks; ++r) {
    row.key = larger(row.key, load_remote(&p.s.totals.key, r));
    row.max = larger(row.max, load_remote(&p.s.totals.max, r));
  }
  return row;
}

}  // namespace tandem::kernels::cuda
