#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/centroid_head.h"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kTopThreads = 1024;
constexpr int kWarps = 8;
constexpr int kGroupRows = 16;  // of the table, that a tensor-core operation multiplies

/// Groups that the rows of one cluster may touch.
__host__ __device__ int groups_of(int size) {
  return size % kGroupRows == 0 ? size / kGroupRows : size / kGroupRows + 2;
}

/// The search for the least of the `top` largest keys, a digit of eight bits at a time.
struct DigitSearch {
  int histogram[256];
  unsigned long long least;  // its digits so far
  int left;                  // keys to find among those that begin with them
  bool is_done;              // all that begin with them are among the largest
};

/// The digit at `shift`, by the first warp.
__device__ void find_digit(DigitSearch& s, int shift) {
  constexpr int kDigits = 8;  // of a lane, from 255 down
  const int lane = threadIdx.x % 32, last = 255 - kDigits * lane;
  int mine = 0;
  for (int i = 0; i < kDigits; ++i) mine += s.histogram[last - i];
  int upto = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, upto, offset);
    if (lane >= offset) upto += before;
  }
  const int left = s.left;
  __syncwarp();
  if (upto < left || upto - mine >= left) return;  // another lane's
  int above = upto - mine, digit = last;
  while (above + s.histogram[digit] < left) above += s.histogram[digit--];
  s.least |= static_cast<unsigned long long>(digit) << shift;
  s.left = left - above;
  s.is_done = s.histogram[digit] == left - above;
}

// A block a row. Keys differ, so that exactly `top` reach the largest value that `top` of them
// reach.
__global__ void __launch_bounds__(kTopThreads) top_clusters_kernel(CentroidArguments a) {
  __shared__ DigitSearch search;
  __shared__ int found;
  after_previous();
  const int row = blockIdx.x;
  unsigned long long* order = a.order + static_cast<std::size_t>(row) * a.clusters;
  for (int c = 4 * threadIdx.x; c < a.clusters; c += 4 * kTopThreads) {
    const float4 sums = sum_parts(a.scores, row, c / kTileRows, c % kTileRows);
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
    for (int i = 0; i < 4 && c + i < a.clusters; ++i) order[c + i] = order_key(values[i], c + i);
  }
  if (threadIdx.x == 0) {
    found = 0;
    search.least = 0;
    search.left = a.top;
    search.is_done = false;
  }
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) search.histogram[threadIdx.x] = 0;
    __syncthreads();
    if (search.is_done) break;
    const unsigned long long least = search.least;
    for (int c = threadIdx.x; c < a.clusters; c += kTopThreads) {
      const unsigned long long key = order[c];
      if (shift < 56 && (key ^ least) >> (shift + 8) != 0) continue;
      const int digit = static_cast<int>(key >> shift & 255);
      const unsigned alike = __match_any_sync(__activemask(), digit);
      if (threadIdx.x % 32 == __ffs(static_cast<int>(alike)) - 1) {
        atomicAdd(&search.histogram[digit], __popc(alike));
      }
    }
    __syncthreads();
    if (threadIdx.x < 32) find_digit(search, shift);
    __syncthreads();
  }
  for (int c = threadIdx.x; c < a.clusters; c += kTopThreads) {
    if (order[c] >= search.least) a.chosen[row * a.top + atomicAdd(&found, 1)] = c;
  }
}

/// Sums of the 16 table rows of a group times row `row` of x, in the order of the whole head: lanes
/// 4 r hold those of rows r and r + 8.
template <BrickKind kKind>
__device__ float2 multiply_group(const MatrixView& table, int group, const HalfRows& x, int row) {
  const int lane = threadIdx.x % 32, superblocks = (table.cols + kBrickCols - 1) / kBrickCols;
  float acc[4] = {};
  for (int sb = 0; sb < superblocks; ++sb) {
    const std::size_t unit = static_cast<std::size_t>(group / 8) * superblocks + sb;
    BrickReader<kKind> reader;
    reader.begin(table.bricks + (unit * 2 + group % 8 / 4) * brick_bytes(kKind), group % 4, lane);
#pragma unroll
    for (int step = 0; step < 16; ++step) {
      std::uint32_t w[4], b[2] = {};
      if (step % 4 == 0) reader.load(step / 4);
      reader.fragment(step % 4, w);
      if (lane < 4) {  // the one column that is not empty
        const int k = sb * kBrickCols + 16 * step + 2 * lane;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          b[i] = *reinterpret_cast<const std::uint32_t*>(
              x.data + activation_index(row, k + 8 * i, x.row_tiles));
        }
      }
      mma_m16n8k16(acc, w, b[0], b[1]);
    }
  }
  return {acc[0], acc[2]};
}

__device__ float2 multiply_group(const MatrixView& table, int group, const HalfRows& x, int row) {
  switch (table.kind) {
    case BrickKind::kQ4K:
      return multiply_group<BrickKind::kQ4K>(table, group, x, row);
    case BrickKind::kQ6K:
      return multiply_group<BrickKind::kQ6K>(table, group, x, row);
    case BrickKind::kQ8:
      return multiply_group<BrickKind::kQ8>(table, group, x, row);
    case BrickKind::kF8:
      return multiply_group<BrickKind::kF8>(table, group, x, row);
    case BrickKind::kFp4:
      return multiply_group<BrickKind::kFp4>(table, group, x, row);
    case BrickKind::kF16:
      return multiply_group<BrickKind::kF16>(table, group, x, row);
    case BrickKind::kE4m3:  // of linears alone
      break;
  }
  return {};
}

// A warp a (row, cluster, group of table rows).
__global__ void __launch_bounds__(32 * kWarps) cluster_kernel(CentroidArguments a, HalfRows x) {
  after_previous();
  const int row = blockIdx.x, lane = threadIdx.x % 32;
  const int unit = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int size = a.table.rows / a.clusters, groups = groups_of(size);
  unsigned long long best = 0;
  if (unit < a.top * groups) {
    const int first = a.chosen[row * a.top + unit / groups] * size;
    const int group = first / kGroupRows + unit % groups;
    if (group * kGroupRows < first + size) {
      const float2 sums = multiply_group(a.table, group, x, row);
      for (int i = 0; i < 2; ++i) {
        const int entry = group * kGroupRows + lane / 4 + 8 * i;
        if (lane % 4 != 0 || entry < first || entry >= first + size) continue;
        const TokenId id = a.ids[entry];
        float value = (i == 0 ? sums.x : sums.y) * brick_unit(a.table.kind);
        if (a.table.row_scales != nullptr) value *= a.table.row_scales[entry];
        if (a.suppressed != nullptr && (a.suppressed[id / 32] >> (id % 32) & 1)) value = -INFINITY;
        const unsigned long long key = order_key(value, id);
        best = key > best ? key : best;
      }
    }
  }
  for (int offset = 4; offset < 32; offset *= 2) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, offset);
    best = other > best ? other : best;
  }
  if (lane == 0) a.keys[static_cast<std::size_t>(row) * gridDim.y * kWarps + unit] = best;
}

}  // namespace

int centroid_keys(int vocab, int clusters, int top) {
  return (top * groups_of(vocab / clusters) + kWarps - 1) / kWarps * kWarps;
}

void centroid_head(const CentroidArguments& a, const HalfRows& x, int rows, cudaStream_t stream) {
  launch(top_clusters_kernel, dim3(static_cast<unsigned>(rows)), kTopThreads, 0, stream, a);
  const int keys = centroid_keys(a.table.rows, a.clusters, a.top);
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(keys / kWarps));
  launch(cluster_kernel, grid, 32 * kWarps, 0, stream, a, x);
}

}  // namespace tandem::kernels::cuda
