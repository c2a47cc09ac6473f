// Attention of up to 16 (row, head) pairs of one KV head over one page of keys, by mma.sync.
//
// K and V lie in fragment order (layouts.cuh), so each warp loads its fragments straight from
// global memory, 16 bytes a lane: eight keys of K a warp for the scores, D / 8 columns of V a warp
// for the sums. Bound: latency of two dependent loads for one stream, bytes of K and V for many.

#include "tandem/kernels/cuda/attention.h"

#include <algorithm>

#include "tandem/kernels/cuda/launch.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kLog2e = 1.4426950408889634f;
constexpr int kScoreStride = kPageTokens + 4;

struct BlockRange {
  int first, last;  // key blocks that some row of the tile sees; first > last: none
};
__device__ BlockRange visible_blocks(const AttentionArguments& a, const AttentionTile& tile) {
  const DeviceRow begin = a.rows[tile.first_row], end = a.rows[tile.first_row + tile.num_rows - 1];
  const int oldest = a.window > 0 ? max(0, begin.position - a.window + 1) : 0;
  return {oldest / kPageTokens, (end.visible_end + kPageTokens - 1) / kPageTokens - 1};
}

/// Scores of this warp's 8 keys: acc[0..1] = row r, keys 2c, 2c + 1; acc[2..3] = row r + 8.
template <int D>
__device__ void score_keys(const half* q0, const half* q1, const uint4 (&keys)[D / 32], int lane,
                           float (&acc)[4]) {
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const int at = i * 4 + lane % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const uint4 x = q0 ? reinterpret_cast<const uint4*>(q0)[at] : zero;
    const uint4 y = q1 ? reinterpret_cast<const uint4*>(q1)[at] : zero;
    const std::uint32_t low[4] = {x.x, y.x, x.y, y.y}, high[4] = {x.z, y.z, x.w, y.w};
    mma_m16n8k16(acc, low, keys[i].x, keys[i].y);
    mma_m16n8k16(acc, high, keys[i].z, keys[i].w);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(AttentionArguments a, int first_tile, int max_blocks) {
  __shared__ float scores[16 * kScoreStride];
  __shared__ __align__(16) half weights[16 * 72];  // [row][key], padded against bank conflicts
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
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;

  const PageId page = a.kv.tables[tile.span * a.kv.table_stride + block];
  const half* k =
      reinterpret_cast<const half*>(a.kv.pages + static_cast<std::size_t>(page) * a.kv.page_bytes +
                                    a.kv.layer_offset) +
      static_cast<std::size_t>(g) * 2 * kPageTokens * D;
  const half* v = k + kPageTokens * D;
  const auto query = [&](int m) -> const half* {
    if (m >= used) return nullptr;
    return a.q + (static_cast<std::size_t>(tile.first_row + m / ratio) * a.heads + g * ratio +
                  m % ratio) *
                     D;
  };

  constexpr int kTiles = D / 8 < kWarps ? 1 : D / 8 / kWarps;  // column tiles a warp
  constexpr int kAhead = kTiles < 4 ? kTiles : 4;
  const bool has_columns = warp * kTiles < D / 8;
  const uint4* v_fragments = reinterpret_cast<const uint4*>(v) + warp * kTiles * 64 + lane;
  const uint4* k_fragments = reinterpret_cast<const uint4*>(k) + warp * (D / 32) * 32 + lane;
  uint4 keys[D / 32], ahead[2 * kAhead] = {};
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < D / 32; ++i) keys[i] = k_fragments[i * 32];
    if (!has_columns) return;
#pragma unroll
    for (int i = 0; i < 2 * kAhead; ++i) ahead[i] = v_fragments[i * 32];
  };
  int oldest[2], end[2];  // positions that this warp's two rows see
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int m = 2 * warp + i;
    const DeviceRow row = a.rows[tile.first_row + (m < used ? m / ratio : 0)];
    oldest[i] = a.window == 0 ? 0 : row.position - a.window + 1;
    end[i] = m < used ? row.visible_end : 0;
  }
  // Keys of earlier steps need not wait for those that this step writes.
  const bool is_old = !a.is_written || (block + 1) * kPageTokens <= tile.known_end;
  if (is_old) load();
  wait_for_previous();
  if (!is_old) load();
  float acc[4] = {};
  score_keys<D>(query(r), query(r + 8), keys, lane, acc);
  for (int i = 0; i < 4; ++i)
    scores[(r + i / 2 * 8) * kScoreStride + warp * 8 + 2 * c + i % 2] = acc[i];
  __syncthreads();

#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int m = 2 * warp + upper;
    float s[2], p[2];
    for (int i = 0; i < 2; ++i) {
      const int key = lane + 32 * i, position = block * kPageTokens + key;
      const bool visible = position < end[upper] && position >= oldest[upper];
      s[i] = visible ? scores[m * kScoreStride + key] : -INFINITY;
    }
    float largest = fmaxf(s[0], s[1]);
    for (int o = 16; o > 0; o /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    for (int i = 0; i < 2; ++i)
      p[i] = largest == -INFINITY ? 0.0f : exp2f((s[i] - largest) * kLog2e);
    float sum = p[0] + p[1];
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int i = 0; i < 2; ++i) weights[m * 72 + lane + 32 * i] = __float2half_rn(p[i]);
    if (lane == 0 && m < used) {
      a.partial_stats[(static_cast<std::size_t>(blockIdx.x) * max_blocks + blockIdx.y) * 16 + m] =
          make_float2(largest, sum);
    }
  }
  __syncthreads();
  if (!has_columns) return;

  std::uint32_t p[4][4];  // A fragments of the four k-steps
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 4; ++i) {
      const int m = r + 8 * (i & 1), key = 16 * step + 2 * c + 8 * (i / 2);
      p[step][i] = *reinterpret_cast<const std::uint32_t*>(&weights[m * 72 + key]);
    }
  }
  float* out =
      a.partial_sums + (static_cast<std::size_t>(blockIdx.x) * max_blocks + blockIdx.y) * 16 * D;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const uint4 b0 = t < kAhead ? ahead[2 * (t % kAhead)] : v_fragments[t * 64];
    const uint4 b1 = t < kAhead ? ahead[2 * (t % kAhead) + 1] : v_fragments[t * 64 + 32];
    float o[4] = {};
    mma_m16n8k16(o, p[0], b0.x, b0.y);
    mma_m16n8k16(o, p[1], b0.z, b0.w);
    mma_m16n8k16(o, p[2], b1.x, b1.y);
    mma_m16n8k16(o, p[3], b1.z, b1.w);
    const int column = (warp * kTiles + t) * 8 + 2 * c;
    if (r < used) *reinterpret_cast<float2*>(out + r * D + column) = make_float2(o[0], o[1]);
    if (r + 8 < used)
      *reinterpret_cast<float2*>(out + (r + 8) * D + column) = make_float2(o[2], o[3]);
  }
}

// One block a (tile, KV head, used row m), four columns a thread: merges the key blocks in
// ascending order.
__global__ void merge_kernel(AttentionArguments a, int first_tile, int max_blocks, HalfRows out) {
  let_next_start();
  const int g = blockIdx.x % a.kv_heads, m = blockIdx.y, d = a.head_size, c = 4 * threadIdx.x;
  const AttentionTile tile = a.tiles[first_tile + blockIdx.x / a.kv_heads];
  const int ratio = a.heads / a.kv_heads;
  const bool is_used = m < tile.num_rows * ratio && c < d;
  const BlockRange range = is_used ? visible_blocks(a, tile) : BlockRange{1, 0};
  wait_for_previous();
  if (!is_used) return;
  const int row = tile.first_row + m / ratio, head = g * ratio + m % ratio,
            count = range.last - range.first + 1;
  const std::size_t unit = static_cast<std::size_t>(blockIdx.x) * max_blocks;
  const float2* stats = a.partial_stats + unit * 16 + m;
  const float* sums = a.partial_sums + (unit * 16 + m) * d + c;
  float largest = -INFINITY, sum = 0;
  float4 value = {};
  for (int first = 0; first < count; first += 8) {
    float2 stat[8];
    float4 part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i >= count) break;
      stat[i] = stats[(first + i) * 16];
      part[i] =
          *reinterpret_cast<const float4*>(sums + static_cast<std::size_t>(first + i) * 16 * d);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i >= count) break;
      if (stat[i].x == -INFINITY) continue;
      const float next = fmaxf(largest, stat[i].x);
      const float old_weight = exp2f((largest - next) * kLog2e),
                  new_weight = exp2f((stat[i].x - next) * kLog2e);
      sum = sum * old_weight + stat[i].y * new_weight;
      value.x = value.x * old_weight + part[i].x * new_weight;
      value.y = value.y * old_weight + part[i].y * new_weight;
      value.z = value.z * old_weight + part[i].z * new_weight;
      value.w = value.w * old_weight + part[i].w * new_weight;
      largest = next;
    }
  }
  const auto result = [sum](float x) {
    return sum > 0 ? x / sum : 0.0f;
  };
  half2* at =
      reinterpret_cast<half2*>(out.data + activation_index(row, head * d + c, out.row_tiles));
  at[0] = __floats2half2_rn(result(value.x), result(value.y));
  at[1] = __floats2half2_rn(result(value.z), result(value.w));
  if (threadIdx.x == 0 && head == 0) out.scale[row] = 1.0f;
}

}  // namespace

void attention(const AttentionArguments& a, int first_tile, int num_tiles, int max_blocks,
               const HalfRows& out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_tiles * a.kv_heads), static_cast<unsigned>(max_blocks));
  switch (a.head_size) {
    case 32:
      launch(attention_kernel<32>, grid, kThreads, 0, stream, a, first_tile, max_blocks);
      break;
    case 64:
      launch(attention_kernel<64>, grid, kThreads, 0, stream, a, first_tile, max_blocks);
      break;
    case 128:
      launch(attention_kernel<128>, grid, kThreads, 0, stream, a, first_tile, max_blocks);
      break;
    case 256:
      launch(attention_kernel<256>, grid, kThreads, 0, stream, a, first_tile, max_blocks);
      break;
    case 512:
      launch(attention_kernel<512>, grid, kThreads, 0, stream, a, first_tile, max_blocks);
      break;
    default:
      return;  // refused by configure()
  }
  launch(merge_kernel, dim3(grid.x, 16), static_cast<unsigned>(std::max(32, a.head_size / 4)), 0,
         stream, a, first_tile, max_blocks, out);
}

}  // namespace tandem::kernels::cuda
