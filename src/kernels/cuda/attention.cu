// Attention of up to 16 (row, head) pairs of one KV head over one page of keys, by mma.sync.
//
// K and V lie in fragment order (layouts.cuh), so each warp loads its fragments straight from
// global memory, 16 bytes a lane: eight keys of K a warp for the scores, D / 8 columns of V a warp
// for the sums. Bound: latency of two dependent loads for one stream, bytes of K and V for many.

#include "tandem/kernels/cuda/attention.h"

#include <algorithm>

#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/row_math.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTileQueries = 16;                   // (row, head) pairs of a tile
constexpr int kScoreStride = kPageTokens + 4;      // against bank conflicts
constexpr int kKeyWeightStride = kPageTokens + 8;  // likewise
constexpr int kMergeThreads = 512;                 // of a row that is rounded
constexpr float kLog2e = 1.4426950408889634f;

/// Column tiles of V, eight columns each, of a warp; warps beyond D / 8 have none.
template <int D>
constexpr int kColumnTiles = D / 8 < kWarps ? 1 : D / 8 / kWarps;

struct BlockRange {
  int first, last;  // key blocks that some row of the tile sees; first > last: none
};
__device__ BlockRange visible_blocks(const AttentionArguments& a, const AttentionTile& tile) {
  const DeviceRow begin = a.rows[tile.first_row], end = a.rows[tile.first_row + tile.num_rows - 1];
  const int oldest = a.window > 0 ? max(0, begin.position - a.window + 1) : 0;
  return {oldest / kPageTokens, (end.visible_end + kPageTokens - 1) / kPageTokens - 1};
}

/// What the two rows see that a warp weighs the keys of.
struct VisibleKeys {
  int oldest[2], end[2];

  __device__ VisibleKeys(const AttentionArguments& a, const AttentionTile& tile, int warp) {
    const int ratio = a.heads / a.kv_heads, used = tile.num_rows * ratio;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = 2 * warp + i;
      const DeviceRow row = a.rows[tile.first_row + (m < used ? m / ratio : 0)];
      oldest[i] = a.window == 0 ? 0 : row.position - a.window + 1;
      end[i] = m < used ? row.visible_end : 0;
    }
  }
};

/// scores[m][8 keys of this warp]. q0, q1: rows lane / 4 and lane / 4 + 8, null: none; key(i): the
/// lane's fragments of two k-steps.
template <int D, typename Key>
__device__ void score_keys(const half* q0, const half* q1, Key&& key, int warp, int lane,
                           float* scores) {
  float acc[4] = {};
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const int at = i * 4 + lane % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0), k = key(i);
    const uint4 x = q0 ? reinterpret_cast<const uint4*>(q0)[at] : zero;
    const uint4 y = q1 ? reinterpret_cast<const uint4*>(q1)[at] : zero;
    const std::uint32_t low[4] = {x.x, y.x, x.y, y.y}, high[4] = {x.z, y.z, x.w, y.w};
    mma_m16n8k16(acc, low, k.x, k.y);
    mma_m16n8k16(acc, high, k.z, k.w);
  }
  for (int i = 0; i < 4; ++i) {
    scores[(lane / 4 + i / 2 * 8) * kScoreStride + warp * 8 + 2 * (lane % 4) + i % 2] = acc[i];
  }
}

/// weights[m][key] = exp(score - the row's largest) of the warp's rows 2 warp and 2 warp + 1;
/// stat(m, (largest, sum)) once a row.
template <typename Stat>
__device__ void weigh_keys(const float* scores, const VisibleKeys& visible, int block, int warp,
                           int lane, half* weights, Stat&& stat) {
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int m = 2 * warp + upper;
    float s[2], p[2];
    for (int i = 0; i < 2; ++i) {
      const int key = lane + 32 * i, position = block * kPageTokens + key;
      const bool is_visible = position < visible.end[upper] && position >= visible.oldest[upper];
      s[i] = is_visible ? scores[m * kScoreStride + key] : -INFINITY;
    }
    float largest = fmaxf(s[0], s[1]);
    for (int o = 16; o > 0; o /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    for (int i = 0; i < 2; ++i)
      p[i] = largest == -INFINITY ? 0.0f : exp2f((s[i] - largest) * kLog2e);
    const float sum = warp_sum(p[0] + p[1]);
    for (int i = 0; i < 2; ++i)
      weights[m * kKeyWeightStride + lane + 32 * i] = __float2half_rn(p[i]);
    if (lane == 0) stat(m, make_float2(largest, sum));
  }
}

/// Weights times V for the warp's columns and m < used, from zero: store(m, column, two sums).
/// value(i): the lane's fragments 2 t and 2 t + 1 of column tile t of this warp.
template <int D, typename Value, typename Store>
__device__ void weigh_values(const half* weights, Value&& value, int used, int warp, int lane,
                             Store&& store) {
  const int r = lane / 4, c = lane % 4;
  std::uint32_t p[4][4];  // A fragments of the four k-steps
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 4; ++i) {
      const int m = r + 8 * (i & 1), key = 16 * step + 2 * c + 8 * (i / 2);
      p[step][i] = *reinterpret_cast<const std::uint32_t*>(&weights[m * kKeyWeightStride + key]);
    }
  }
#pragma unroll
  for (int t = 0; t < kColumnTiles<D>; ++t) {
    const uint4 b0 = value(2 * t), b1 = value(2 * t + 1);
    float o[4] = {};
    mma_m16n8k16(o, p[0], b0.x, b0.y);
    mma_m16n8k16(o, p[1], b0.z, b0.w);
    mma_m16n8k16(o, p[2], b1.x, b1.y);
    mma_m16n8k16(o, p[3], b1.z, b1.w);
    const int column = (warp * kColumnTiles<D> + t) * 8 + 2 * c;
    if (r < used) store(r, column, make_float2(o[0], o[1]));
    if (r + 8 < used) store(r + 8, column, make_float2(o[2], o[3]));
  }
}

/// Four columns of a row, over the blocks so far: they come in ascending order.
struct MergedBlocks {
  float largest = -INFINITY, sum = 0.0f;
  float4 value = {};

  __device__ void take(float2 stat, float4 part) {
    if (stat.x == -INFINITY) return;
    // exp of the difference to the larger of both; that one's weight is 1.
    const float weight = exp2f(-fabsf(stat.x - largest) * kLog2e);
    const bool is_larger = stat.x > largest;
    const float old_weight = is_larger ? weight : 1.0f, new_weight = is_larger ? 1.0f : weight;
    sum = sum * old_weight + stat.y * new_weight;
    value = value * old_weight + part * new_weight;
    largest = fmaxf(largest, stat.x);
  }
  __device__ float4 mean() const { return value * (sum > 0 ? 1.0f / sum : 0.0f); }
};

/// Columns c .. c + 3 of query m, over the `count` blocks of a unit from block `first` on.
__device__ MergedBlocks merged_blocks(const AttentionArguments& a, std::size_t first, int m, int c,
                                      int count) {
  const int d = a.head_size;
  const float2* stats = a.partial_stats + first * kTileQueries + m;
  const float* sums = a.partial_sums + (first * kTileQueries + m) * d + c;
  MergedBlocks merged;
#pragma unroll 1
  for (int block = 0; block < count; block += 8) {
    float2 stat[8];
    float4 part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (block + i >= count) break;
      stat[i] = stats[(block + i) * kTileQueries];
      part[i] = load4(sums + static_cast<std::size_t>(block + i) * kTileQueries * d);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (block + i < count) merged.take(stat[i], part[i]);
    }
  }
  return merged;
}

/// Starts K and V of a page and KV head on their way into L2.
template <int D>
__device__ void prefetch_block(const half* k) {
  constexpr int kLine = 128 / sizeof(half);
  for (int i = threadIdx.x * kLine; i < 2 * kPageTokens * D; i += kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(k + i));
  }
}

/// A lane's fragments of K and V on their way into registers. kMany: more blocks of threads than
/// the device holds. Four of them share an SM, so that they hold part of K, where else a block
/// waits with all of K and most of V.
template <int D, bool kMany>
struct Fragments {
  static constexpr int kTiles = kColumnTiles<D>;
  static constexpr int kHeld = kMany && D > 256 ? 8 : D / 32;
  static constexpr int kAhead = 2 * (kMany ? 1 : kTiles < 4 ? kTiles : 4);
  const uint4 *k, *v;
  bool has_columns;
  uint4 keys[kHeld], ahead[kAhead];

  __device__ Fragments(const half* block, int warp, int lane)
      : k(reinterpret_cast<const uint4*>(block) + warp * (D / 32) * 32 + lane),
        v(reinterpret_cast<const uint4*>(block + kPageTokens * D) + warp * kTiles * 64 + lane),
        has_columns(warp * kTiles < D / 8),
        ahead() {}

  __device__ void load_keys(int first) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) keys[i] = k[(first + i) * 32];
  }
  __device__ void load() {
    load_keys(0);
    if (!has_columns) return;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = v[i * 32];
  }
  /// In ascending order.
  __device__ uint4 key(int i) {
    if (i > 0 && i % kHeld == 0) load_keys(i);
    return keys[i % kHeld];
  }
  __device__ uint4 value(int i) const {
    return i < kAhead ? ahead[i % kAhead] : v[i * 32];
  }
};

template <int D, bool kMany>
__global__ void __launch_bounds__(kThreads, kMany ? 4 : 2)
    attention_kernel(AttentionArguments a, int first_tile, int max_blocks) {
  __shared__ float scores[kTileQueries * kScoreStride];
  __shared__ __align__(16) half weights[kTileQueries * kKeyWeightStride];
  let_next_start();
  const int g = blockIdx.x % a.kv_heads;
  const AttentionTile tile = a.tiles[first_tile + blockIdx.x / a.kv_heads];
  const BlockRange range = tile.num_rows > 0 ? visible_blocks(a, tile) : BlockRange{1, 0};
  const int block = range.first + blockIdx.y;
  if (block > range.last) {  // the grid is as large as the longest text needs
    wait_for_previous();
    return;
  }
  const int ratio = a.heads / a.kv_heads, used = tile.num_rows * ratio;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const half* k = a.kv.page(tile.span, block) + static_cast<std::size_t>(g) * 2 * kPageTokens * D;
  const auto query = [&](int m) -> const half* {
    if (m >= used) return nullptr;
    const std::size_t row = tile.first_row + m / ratio;
    return a.q + (row * a.heads + g * ratio + m % ratio) * D;
  };

  Fragments<D, kMany> fragments(k, warp, lane);
  const VisibleKeys visible(a, tile, warp);
  // Keys of earlier steps need not wait for those that this step writes.
  const bool is_old = !a.is_written || (block + 1) * kPageTokens <= tile.known_end;
  if (kMany || !is_old) prefetch_block<D>(k);
  if (is_old) fragments.load();
  wait_for_previous();
  if (!is_old) fragments.load();
  score_keys<D>(
      query(lane / 4), query(lane / 4 + 8), [&](int i) { return fragments.key(i); }, warp, lane,
      scores);
  __syncthreads();
  const std::size_t unit = static_cast<std::size_t>(blockIdx.x) * max_blocks + blockIdx.y;
  weigh_keys(scores, visible, block, warp, lane, weights, [&](int m, float2 stat) {
    if (m < used) a.partial_stats[unit * kTileQueries + m] = stat;
  });
  __syncthreads();
  if (!fragments.has_columns) return;
  float* out = a.partial_sums + unit * kTileQueries * D;
  weigh_values<D>(
      weights, [&](int i) { return fragments.value(i); }, used, warp, lane,
      [&](int m, int column, float2 sums) {
        *reinterpret_cast<float2*>(out + m * D + column) = sums;
      });
}

// One block a (tile, KV head, used row m), four columns a thread.
__global__ void merge_kernel(AttentionArguments a, int first_tile, int max_blocks, HalfRows out) {
  let_next_start();
  const int g = blockIdx.x % a.kv_heads, m = blockIdx.y, d = a.head_size, c = 4 * threadIdx.x;
  const AttentionTile tile = a.tiles[first_tile + blockIdx.x / a.kv_heads];
  const int ratio = a.heads / a.kv_heads;
  const bool is_used = m < tile.num_rows * ratio && c < d;
  const BlockRange range = is_used ? visible_blocks(a, tile) : BlockRange{1, 0};
  wait_for_previous();
  if (!is_used) return;
  const MergedBlocks merged = merged_blocks(a, static_cast<std::size_t>(blockIdx.x) * max_blocks, m,
                                            c, range.last - range.first + 1);
  const int row = tile.first_row + m / ratio, col = (g * ratio + m % ratio) * d + c;
  store_half4(out, row, col, merged.mean());
  if (col == 0) out.scale[row] = 1.0f;
}

// The same, rounded to fp16 and then to e4m3 as round_rows() does: a block a (tile, row).
__global__ void __launch_bounds__(kMergeThreads)
    merge_rounded_kernel(AttentionArguments a, int first_tile, int max_blocks, HalfRows out) {
  __shared__ float4 values[kMostMergedCols / 4];
  __shared__ float scratch[32];
  let_next_start();
  const AttentionTile tile = a.tiles[first_tile + blockIdx.x];
  const int r = blockIdx.y, ratio = a.heads / a.kv_heads, d = a.head_size;
  const bool is_used = r < tile.num_rows;
  const BlockRange range = is_used ? visible_blocks(a, tile) : BlockRange{1, 0};
  wait_for_previous();
  if (!is_used) return;
  float largest = 0.0f;
  for (int i = threadIdx.x; i < a.heads * d / 4; i += blockDim.x) {
    const int head = 4 * i / d, g = head / ratio;
    const std::size_t unit = static_cast<std::size_t>(blockIdx.x) * a.kv_heads + g;
    const float4 v = merged_blocks(a, unit * max_blocks, r * ratio + head % ratio, 4 * i % d,
                                   range.last - range.first + 1)
                         .mean();
    const float2 low = __half22float2(__floats2half2_rn(v.x, v.y)),
                 high = __half22float2(__floats2half2_rn(v.z, v.w));
    values[i] = {low.x, low.y, high.x, high.y};
    largest = fmaxf(largest, largest_of(values[i]));
  }
  const float scale = e4m3_scale(block_max(largest, scratch));
  const int row = tile.first_row + r;
  for (int i = threadIdx.x; i < a.heads * d / 4; i += blockDim.x) {
    store_e4m3(out, row, 4 * i, values[i], scale);
  }
  if (threadIdx.x == 0) out.scale[row] = scale;
}

unsigned num_sms() {
  static const unsigned count = [] {
    int device = 0, sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    return static_cast<unsigned>(sms);
  }();
  return count;
}

}  // namespace

void attention(const AttentionArguments& a, int first_tile, int num_tiles, int max_blocks,
               const HalfRows& out, cudaStream_t stream) {
  const auto choose = [&]<bool kMany>() {
    return a.head_size == 32    ? attention_kernel<32, kMany>
           : a.head_size == 64  ? attention_kernel<64, kMany>
           : a.head_size == 128 ? attention_kernel<128, kMany>
           : a.head_size == 256 ? attention_kernel<256, kMany>
                                : attention_kernel<512, kMany>;  // checked by configure()
  };
  const auto units = static_cast<unsigned>(num_tiles * a.kv_heads);
  const dim3 grid(units, static_cast<unsigned>(max_blocks));
  const bool is_many = grid.x * grid.y > 2 * num_sms();
  const auto kernel = is_many ? choose.operator()<true>() : choose.operator()<false>();
  launch(kernel, grid, kThreads, 0, stream, a, first_tile, max_blocks);
  if (out.form != InputForm::kHalf) {
    const auto rows = static_cast<unsigned>(std::max(1, kTileQueries * a.kv_heads / a.heads));
    launch(merge_rounded_kernel, dim3(static_cast<unsigned>(num_tiles), rows), kMergeThreads, 0,
           stream, a, first_tile, max_blocks, out);
    return;
  }
  launch(merge_kernel, dim3(units, kTileQueries),
         static_cast<unsigned>(std::max(32, a.head_size / 4)), 0, stream, a, first_tile, max_blocks,
         out);
}

}  // namespace tandem::kernels::cuda
