// Choosing tokens by temperature, top-k, top-p and min-p without sorting the vocabulary: a cluster
// of blocks a row, each with a run of the head's tiles, which it reads from L2 again for every
// pass. Sums of masses are integers (sampling_math.h), so neither the number of blocks nor the
// order of their additions shows in a token. Top-k and top-p are a search for the last kept logit:
// how many tokens, or what mass, are in each 64th of a nat below the largest, and then in the
// digits of the bucket that decides. The draw needs the masses of tiles alone. Bound: instructions
// of a pass.

#include <algorithm>
#include <cmath>

#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/sampler_part.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kMostRanks = 8;  // the largest cluster that every device must place
constexpr int kMostShared = 48 * 1024;

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

// ---- truncation ---------------------------------------------------------------------------------

__device__ void add_amount(Shared& s, int bin, Mass amount) {
  const auto low = static_cast<std::uint32_t>(amount);
  const std::uint32_t carry = atomicAdd(&s.low[bin], low) > ~low;
  const std::uint32_t high = static_cast<std::uint32_t>(amount >> 32) + carry;
  if (high > 0) atomicAdd(&s.high[bin], high);
}

/// Finds the bin in which the amounts of all blocks, from the largest bin down, reach `wanted`:
/// s.bin and s.above. Whatever they lack is in bin 0. One block's work: a row's bins are 128 KB,
/// which cross between SMs.
__device__ void find_bin(const Part& p, Mass wanted) {
  static_assert(kBins == 4 * kThreads, "a thread has four bins");
  constexpr Mass kRest = Mass{1} << 62;
  const int first = kBins - 4 - 4 * static_cast<int>(threadIdx.x);
  Mass amounts[4] = {0, 0, 0, first == 0 ? kRest : 0};  // of the bins from first + 3 down
  for (int r = 0; r < p.a.shape.ranks; ++r) {
    const uint4 low = load_remote4(&p.s.low[first], r), high = load_remote4(&p.s.high[first], r);
    amounts[0] += Mass{high.w} << 32 | low.w;
    amounts[1] += Mass{high.z} << 32 | low.z;
    amounts[2] += Mass{high.y} << 32 | low.y;
    amounts[3] += Mass{high.x} << 32 | low.x;
  }
  const Mass mine = amounts[0] + amounts[1] + amounts[2] + amounts[3];
  const Mass running = warp_running_sum(mine);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 31) p.s.scratch[warp] = running;
  __syncthreads();
  Mass above = running - mine;
  for (int w = 0; w < warp; ++w) above += p.s.scratch[w];
  for (int i = 0; i < 4; ++i) {
    if (above < wanted && above + amounts[i] >= wanted) {
      p.s.bin = first + 3 - i;
      p.s.above = above;
    }
    above += amounts[i];
  }
}

/// The place of a logit among kBins, larger for larger ones: 64 a nat, the rest in the last one, 0,
/// whose tokens have no mass.
__device__ std::uint32_t bucket_of(const Law& law, float logit) {
  const float distance = law.log_weight(logit) * -64.0f;
  constexpr float kLast = kBins - 1;
  return kBins - 1 - static_cast<std::uint32_t>(distance < kLast ? distance : kLast);
}

/// Adds up by bin_of(logit) the amounts of the tokens that have a bin >= 0, and finds the bin in
/// which they reach `wanted`.
template <typename BinOf, typename Amount>
__device__ std::uint32_t search_bins(const Part& p, Mass& wanted, BinOf bin_of, Amount amount) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) p.s.low[i] = p.s.high[i] = 0;
  __syncthreads();
  p.for_tiles([&](int, const float(&logits)[4]) {
    for (const float logit : logits) {
      const int bin = bin_of(logit);
      if (bin < 0) continue;
      if (const Mass one = amount(logit); one > 0) add_amount(p.s, bin, one);
    }
  });
  cluster_sync();
  if (p.rank == 0) find_bin(p, wanted);
  cluster_sync();
  wanted -= load_remote(&p.s.above, 0);
  return load_remote(&p.s.bin, 0);
}

/// The edge of the fewest likeliest tokens whose amounts, amount(logit) each, reach `wanted`.
template <typename Amount>
__device__ Edge find_edge(const Part& p, const Law& law, Mass wanted, Amount amount) {
  // Tokens of the last bucket, often most of them, are not counted: what is left is theirs.
  const auto counted_bucket = [&law](float logit) {
    const std::uint32_t bucket = bucket_of(law, logit);
    return bucket > 0 ? static_cast<int>(bucket) : -1;
  };
  const std::uint32_t bucket = search_bins(p, wanted, counted_bucket, amount);
  Edge edge;
  std::uint32_t known = 0;  // bits of edge.order
  for (int shift = 32; shift > 0;) {
    const int bits = min(shift, kDigitBits);
    shift -= bits;
    const std::uint32_t digits = (1u << bits) - 1;
    const auto digit_of = [&](float logit) {
      const std::uint32_t order = ordered(logit);
      const bool is_inside = bucket_of(law, logit) == bucket && (order & known) == edge.order;
      return is_inside ? static_cast<int>(order >> shift & digits) : -1;
    };
    edge.order |= search_bins(p, wanted, digit_of, amount) << shift;
    known |= digits << shift;
  }
  const Mass one = amount(value_of(edge.order));
  edge.ties = static_cast<std::uint32_t>(one > 0 ? (wanted + one - 1) / one : 0);
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
    edge = find_edge(p, law, static_cast<Mass>(params.top_k), [](float) { return Mass{1}; });
  }
  if (params.top_p < 1.0f) {
    const Kept all = weigh(p, edge, mass);
    edge = find_edge(p, law, nucleus_of(all.row, params.top_p), mass);
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
  const RowSampling sampling = a.sampling[p.row];
  const Totals row = finish_part(p, sampling);
  const SamplingParams& params = sampling.params;
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
  const dim3 grid(static_cast<unsigned>(shape.ranks), static_cast<unsigned>(rows));
  return cluster_launch(shape.ranks, grid, kThreads, shape.shared_bytes(), stream, attributes);
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

void sample_rows(const SampleArguments& a, int num_rows, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = configuration(a.shape, num_rows, stream, attributes);
  cudaLaunchKernelEx(&config, sample_kernel, a);
}

}  // namespace tandem::kernels::cuda
