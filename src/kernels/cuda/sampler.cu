// Choosing tokens by temperature, top-k, top-p and min-p without sorting the vocabulary: a cluster
// of blocks a row, each with a run of the head's tiles, which it reads from L2 again for every
// pass. Sums of masses are integers (sampling_math.h), so neither the number of blocks nor the
// order of their additions shows in a token. Top-k and top-p are a search for the last kept value,
// eleven bits of it a pass: how many tokens, or what mass, have each digit. The draw needs the
// masses of tiles alone. Bound: instructions of a pass (an exp a token), about 2 us for a row's
// cluster.

#include <algorithm>
#include <cmath>

#include "tandem/kernels/cuda/cluster.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_math.cuh"
#include "tandem/kernels/cuda/sampler.h"
#include "tandem/kernels/sampling_math.h"

namespace tandem::kernels::cuda {
namespace {

using Mass = unsigned long long;

constexpr int kThreads = 512;
constexpr int kMostRanks = 8;  // the largest cluster that every device must place
constexpr int kDigits = 3;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kThreadBins = kBins / kThreads;
constexpr int kMostShared = 48 * 1024;

struct SampleArguments {
  LogitTiles logits;
  SamplerShape shape;
  const DeviceRow* rows;
  const SamplingParams* sampling;
  TokenId* chosen;
};

/// What a block adds up, where the others of its cluster read it.
struct Totals {
  Mass key;                 // order_key of the largest sum
  Mass mass;                // of the kept tokens beyond the edge
  std::uint32_t max, ties;  // the largest logit, ordered; tokens at the edge
};

struct Shared {
  Totals totals;
  Mass scratch[32];
  Mass above;  // what lies above the found digit
  std::uint32_t digit;
  std::uint32_t low[kBins], high[kBins];  // amounts by digit; 64 bits in two words
};
/// Behind Shared: masses [tiles] and numbers of ties [tiles].

/// The order of floats as that of integers. Needs no -0.
__device__ std::uint32_t ordered(float v) {
  const std::uint32_t bits = __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float value_of(std::uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ Mass load_remote(const Mass* local, int rank) {
  Mass v;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(remote_address(local, rank)));
  return v;
}
__device__ std::uint32_t load_remote(const std::uint32_t* local, int rank) {
  std::uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote_address(local, rank)));
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

__device__ float finished(const LogitTiles& t, float sum, int id) {
  if (t.softcap > 0.0f) sum = t.softcap * tanhf(sum / t.softcap);
  const bool is_never =
      id >= t.vocab || (t.suppressed != nullptr && (t.suppressed[id / 32] >> (id % 32) & 1));
  return is_never ? -INFINITY : sum + 0.0f;  // no -0
}
__device__ float4 load_sums(const LogitTiles& t, int row, int tile, int n) {
  return sum_parts(t.sums, TileParts{tile, 1}, row, n);
}
__device__ float* logits_at(const LogitTiles& t, int row, int tile, int n) {
  return t.data + (static_cast<std::size_t>(tile) * t.sums.max_rows + row) * kTileRows + n;
}

__global__ void finish_kernel(LogitTiles t, int num_rows) {
  after_previous();
  const int tile = blockIdx.x, row = 8 * blockIdx.y + threadIdx.x / 32, n = 4 * (threadIdx.x % 32);
  if (row >= num_rows) return;
  const float4 v = load_sums(t, row, tile, n);
  const int id = tile * kTileRows + n;
  store4(logits_at(t, row, tile, n), {finished(t, v.x, id), finished(t, v.y, id + 1),
                                      finished(t, v.z, id + 2), finished(t, v.w, id + 3)});
}

/// Kept: the tokens whose logit is beyond `order`, and of those at it the first `ties` by id.
struct Edge {
  std::uint32_t order = 0;
  std::uint32_t ties = 0;
};

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
    for (int t = threadIdx.x / 32; t < count; t += kThreads / 32) {
      const float4 v = load4(logits_at(a.logits, row, first + t, 4 * (threadIdx.x % 32)));
      const float logits[4] = {v.x, v.y, v.z, v.w};
      f(t, logits);
    }
  }
};

/// Turns the part's sums into logits. Returns the row's largest sum and logit.
__device__ Totals finish_part(const Part& p) {
  Mass key = order_key(-INFINITY, 0);
  std::uint32_t max = 0;
  for (int t = threadIdx.x / 32; t < p.count; t += kThreads / 32) {
    const int tile = p.first + t, n = 4 * (threadIdx.x % 32);
    const float4 v = load_sums(p.a.logits, p.row, tile, n);
    const float sums[4] = {v.x, v.y, v.z, v.w};
    float logits[4];
    for (int i = 0; i < 4; ++i) {
      const int id = tile * kTileRows + n + i;
      logits[i] = finished(p.a.logits, sums[i], id);
      if (!(logits[i] > -INFINITY)) continue;
      key = larger(key, order_key(sums[i], id));
      max = larger(max, ordered(logits[i]));
    }
    store4(logits_at(p.a.logits, p.row, tile, n), {logits[0], logits[1], logits[2], logits[3]});
  }
  key = block_reduce(key, p.s.scratch, larger<Mass>);
  const Mass block_max = block_reduce(Mass{max}, p.s.scratch, larger<Mass>);
  if (threadIdx.x == 0) {
    p.s.totals.key = key;
    p.s.totals.max = static_cast<std::uint32_t>(block_max);
  }
  cluster_sync();
  Totals row = {};
  for (int r = 0; r < p.a.shape.ranks; ++r) {
    row.key = larger(row.key, load_remote(&p.s.totals.key, r));
    row.max = larger(row.max, load_remote(&p.s.totals.max, r));
  }
  return row;
}

// ---- truncation ---------------------------------------------------------------------------------

__device__ void add_amount(Shared& s, std::uint32_t digit, Mass amount) {
  const auto low = static_cast<std::uint32_t>(amount);
  const std::uint32_t carry = atomicAdd(&s.low[digit], low) > ~low;
  const std::uint32_t high = static_cast<std::uint32_t>(amount >> 32) + carry;
  if (high > 0) atomicAdd(&s.high[digit], high);
}

/// Finds the digit in which the amounts, from the largest digit down, reach `wanted`: s.digit and
/// s.above.
__device__ void find_digit(const Part& p, Mass wanted) {
  Mass amounts[kThreadBins], mine = 0;
  for (int i = 0; i < kThreadBins; ++i) {
    const int bin = kBins - 1 - (kThreadBins * static_cast<int>(threadIdx.x) + i);
    amounts[i] = 0;
    for (int r = 0; r < p.a.shape.ranks; ++r) {
      amounts[i] += Mass{load_remote(&p.s.high[bin], r)} << 32 | load_remote(&p.s.low[bin], r);
    }
    mine += amounts[i];
  }
  const Mass running = warp_running_sum(mine);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 31) p.s.scratch[warp] = running;
  __syncthreads();
  Mass above = running - mine;
  for (int w = 0; w < warp; ++w) above += p.s.scratch[w];
  for (int i = 0; i < kThreadBins; ++i) {
    if (above < wanted && above + amounts[i] >= wanted) {
      p.s.digit = kBins - 1 - (kThreadBins * static_cast<int>(threadIdx.x) + i);
      p.s.above = above;
    }
    above += amounts[i];
  }
  // Also: everybody has read the amounts of the others.
  cluster_sync();
}

/// The edge of the fewest likeliest tokens whose amounts, amount(logit) each, reach `wanted`.
template <typename Amount>
__device__ Edge find_edge(const Part& p, Mass wanted, Amount amount) {
  Edge edge;
  std::uint32_t known = 0;  // bits of edge.order
  for (int d = 0; d < kDigits; ++d) {
    const int shift = d == 0 ? 32 - kDigitBits : d == 1 ? 32 - 2 * kDigitBits : 0;
    const std::uint32_t bins = d + 1 < kDigits ? kBins : 1u << (32 - 2 * kDigitBits);
    for (int i = threadIdx.x; i < kBins; i += kThreads) p.s.low[i] = p.s.high[i] = 0;
    if (threadIdx.x == 0) {
      p.s.digit = 0;
      p.s.above = 0;
    }
    __syncthreads();
    p.for_tiles([&](int, const float(&logits)[4]) {
      for (const float logit : logits) {
        const std::uint32_t order = ordered(logit);
        if ((order & known) != edge.order) continue;
        const Mass one = amount(logit);
        if (one > 0) add_amount(p.s, order >> shift & (bins - 1), one);
      }
    });
    cluster_sync();
    find_digit(p, wanted);
    wanted -= p.s.above;
    edge.order |= p.s.digit << shift;
    known |= (bins - 1) << shift;
    if (d + 1 == kDigits) break;
    __syncthreads();
  }
  const Mass one = amount(value_of(edge.order));
  edge.ties = static_cast<std::uint32_t>(one > 0 ? (wanted + one - 1) / one : 0);
  __syncthreads();
  return edge;
}

// ---- the draw -----------------------------------------------------------------------------------

/// Ties that stay of `ties`, where `before` come first.
__device__ std::uint32_t kept_ties(const Edge& edge, std::uint32_t before, std::uint32_t ties) {
  return edge.ties > before ? min(edge.ties - before, ties) : 0;
}

/// The kept mass of a row, and what comes before this block's.
struct Kept {
  Mass row = 0, before = 0, mine = 0;
  Mass of_tie = 0;  // mass of a token at the edge
  std::uint32_t ties_before = 0;
};

/// Weighs the part's tiles. mass(logit): of a token, were it kept.
template <typename MassOf>
__device__ Kept weigh(const Part& p, const Edge& edge, MassOf mass) {
  Mass block_mass = 0;
  std::uint32_t block_ties = 0;
  p.for_tiles([&](int t, const float(&logits)[4]) {
    Mass sum = 0;
    std::uint32_t ties = 0;
    for (const float logit : logits) {
      const std::uint32_t order = ordered(logit);
      if (order > edge.order) sum += mass(logit);
      ties += order == edge.order;
    }
    sum = warp_sum(sum);
    ties = __reduce_add_sync(0xffffffffu, ties);
    if (threadIdx.x % 32 == 0) {
      p.masses[t] = sum;
      p.ties[t] = ties;
      block_mass += sum;
      block_ties += ties;
    }
  });
  block_mass = block_reduce(block_mass, p.s.scratch, add<Mass>);
  const Mass all_ties = block_reduce(Mass{block_ties}, p.s.scratch, add<Mass>);
  if (threadIdx.x == 0) {
    p.s.totals.mass = block_mass;
    p.s.totals.ties = static_cast<std::uint32_t>(all_ties);
  }
  cluster_sync();
  Kept kept;
  if (edge.ties > 0) kept.of_tie = mass(value_of(edge.order));
  std::uint32_t before = 0;
  for (int r = 0; r < p.a.shape.ranks; ++r) {
    const std::uint32_t ties = load_remote(&p.s.totals.ties, r);
    const Mass part =
        load_remote(&p.s.totals.mass, r) + kept_ties(edge, before, ties) * kept.of_tie;
    if (r == p.rank) {
      kept.before = kept.row;
      kept.mine = part;
      kept.ties_before = before;
    }
    kept.row += part;
    before += ties;
  }
  return kept;
}

/// A place in the order of ids.
struct Place {
  Mass left;  // of the target, beyond what comes before
  std::uint32_t ties_before;
  int index;
  bool is_found;
};

/// The lane whose running mass exceeds at.left, if any; else moves past all of them. A warp's work.
__device__ void find_lane(const Edge& edge, const Kept& kept, Mass mass, std::uint32_t ties,
                          Place& at) {
  const std::uint32_t ties_up_to = warp_running_sum(ties);
  const std::uint32_t ties_before = at.ties_before + ties_up_to - ties;
  mass += kept_ties(edge, ties_before, ties) * kept.of_tie;
  const Mass up_to = warp_running_sum(mass);
  const unsigned beyond = __ballot_sync(0xffffffffu, up_to > at.left);
  at.is_found = beyond != 0;
  const int lane = at.is_found ? __ffs(static_cast<int>(beyond)) - 1 : 31;
  const Mass passed = at.is_found ? up_to - mass : up_to;
  at.left -= __shfl_sync(0xffffffffu, passed, lane);
  at.ties_before =
      __shfl_sync(0xffffffffu, at.is_found ? ties_before : at.ties_before + ties_up_to, lane);
  at.index = lane;
}

/// The token at mass `target` of this block's. The first warp's work.
template <typename MassOf>
__device__ TokenId draw(const Part& p, const Edge& edge, const Kept& kept, Mass target,
                        MassOf mass) {
  const int lane = threadIdx.x % 32;
  Place at = {target, kept.ties_before, 0, false};
  int tile = 0;
  for (int begin = 0; begin < p.count && !at.is_found; begin += 32) {
    const int t = begin + lane;
    find_lane(edge, kept, t < p.count ? p.masses[t] : 0, t < p.count ? p.ties[t] : 0, at);
    tile = begin + at.index;
  }
  const float4 v = load4(logits_at(p.a.logits, p.row, p.first + tile, 4 * lane));
  const float logits[4] = {v.x, v.y, v.z, v.w};
  Mass masses[4], sum = 0;
  std::uint32_t ties = 0;
  for (int i = 0; i < 4; ++i) {
    masses[i] = ordered(logits[i]) > edge.order ? mass(logits[i]) : 0;
    sum += masses[i];
    ties += ordered(logits[i]) == edge.order;
  }
  find_lane(edge, kept, sum, ties, at);
  const int id = (p.first + tile) * kTileRows + 4 * at.index;
  int i = 0;
  for (; i < 3; ++i) {
    Mass one = masses[i];
    if (ordered(logits[i]) == edge.order) one = at.ties_before++ < edge.ties ? kept.of_tie : 0;
    if (at.left < one) break;
    at.left -= one;
  }
  return id + __shfl_sync(0xffffffffu, i, at.index);
}

__device__ void sample_part(const Part& p, const SamplingParams& params, float max) {
  const Law law = Law::of(params, max);
  const auto mass = [&law](float logit) -> Mass {
    return law.mass(logit);
  };
  const auto drawn_mass = [&law](float logit) -> Mass {
    return law.drawn_mass(logit);
  };
  Edge edge;
  if (params.top_k > 0 && params.top_k < p.a.logits.vocab) {
    edge = find_edge(p, static_cast<Mass>(params.top_k), [](float) { return Mass{1}; });
  }
  if (params.top_p < 1.0f) {
    const Kept all = weigh(p, edge, mass);
    edge = find_edge(p, nucleus_of(all.row, params.top_p), mass);
  }
  const Kept kept = weigh(p, edge, drawn_mass);
  const Position position = p.a.rows[p.row].position + 1;
  const Mass target = share_of(kept.row, random_bits(params.seed, position));
  const bool is_here = target >= kept.before && target - kept.before < kept.mine;
  if (!is_here || threadIdx.x >= 32) return;
  const TokenId token = draw(p, edge, kept, target - kept.before, drawn_mass);
  if (threadIdx.x == 0) p.a.chosen[p.row] = token;
}

__global__ void __launch_bounds__(kThreads, 2) sample_kernel(SampleArguments a) {
  extern __shared__ __align__(16) std::uint8_t smem[];
  after_previous();
  const Part p(a, smem);
  const Totals row = finish_part(p);
  const SamplingParams params = a.sampling[p.row];
  const float max = value_of(row.max);
  if (is_greedy(params) || !isfinite(max)) {
    if (p.rank == 0 && threadIdx.x == 0) a.chosen[p.row] = id_of_key(row.key);
  } else {
    sample_part(p, params, max);
  }
  cluster_sync();  // nobody leaves while others may read its shared memory
}

/// A launch of `rows` clusters; `attributes` must live until it is made.
cudaLaunchConfig_t configuration(const SamplerShape& shape, int rows, cudaStream_t stream,
                                 cudaLaunchAttribute (&attributes)[2]) {
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(shape.ranks);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.ranks), static_cast<unsigned>(rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shape.shared_bytes();
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

}  // namespace

std::size_t SamplerShape::shared_bytes() const {
  return sizeof(Shared) + static_cast<std::size_t>(tiles) * (sizeof(Mass) + sizeof(std::uint32_t));
}

core::Result<SamplerShape> sampler_shape(int vocab) {
  for (int ranks = kMostRanks; ranks > 0; ranks /= 2) {
    const int tiles = (vocab + kTileRows - 1) / kTileRows;
    const SamplerShape shape = {ranks, (tiles + ranks - 1) / ranks};
    if (shape.shared_bytes() > kMostShared) break;
    cudaLaunchAttribute attributes[2] = {};
    const cudaLaunchConfig_t config = configuration(shape, 1, nullptr, attributes);
    int clusters = 0;
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, sample_kernel, &config);
    cudaGetLastError();  // a refusal is an answer
    if (error == cudaSuccess && clusters > 0) return shape;
  }
  return core::unimplemented("a vocabulary of " + std::to_string(vocab) +
                             " tokens is larger than CUDA sampling is built for; use --device cpu");
}

void finish_logits(const LogitTiles& t, int num_rows, cudaStream_t stream) {
  const int tiles = (t.vocab + kTileRows - 1) / kTileRows;
  launch(finish_kernel, dim3(tiles, (num_rows + 7) / 8), 256, 0, stream, t, num_rows);
}

void sample_rows(const LogitTiles& t, const SamplerShape& shape, const DeviceRow* rows,
                 const SamplingParams* sampling, int num_rows, TokenId* chosen,
                 cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = configuration(shape, num_rows, stream, attributes);
  cudaLaunchKernelEx(&config, sample_kernel, SampleArguments{t, shape, rows, sampling, chosen});
}

}  // namespace tandem::kernels::cuda
