// A head of q, k or v of one row, by a block: sums of parts, norm, RoPE, fp16.

#include "tandem/kernels/cuda/head_rows.h"

#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/two_sums.cuh"

namespace tandem::kernels::cuda {
namespace {

/// Place of `dim` in a row of q: the two k-steps that a lane reads at once lie together.
__device__ int pair_index(int dim) {
  return dim / 32 * 32 + dim % 8 / 2 * 8 + dim / 16 % 2 * 4 + dim % 16 / 8 * 2 + dim % 2;
}

enum class HeadRole { kQuery, kKey, kValue };

/// What is not finite would spoil the rows that see it behind their mask, too: it becomes 0.
__device__ float4 storable(float4 v, bool& fits) {
  const auto one = [&fits](float x) {
    const bool is_small = fabsf(x) <= 65504.0f;
    fits = fits && is_small;
    return is_small ? x : 0.0f;
  };
  return {one(v.x), one(v.y), one(v.z), one(v.w)};
}

/// Threads of a head: each has four dimensions of the first half and their RoPE partners in the
/// second.
template <int D>
constexpr int kHeadThreads = D > 256 ? D / 8 : 32;

/// Over the threads of a head, in one fixed order.
template <int D>
__device__ float head_sum(float value) {
  value = warp_sum(value);
  if constexpr (kHeadThreads < D >> 32) {
    __shared__ float scratch[kHeadThreads<D> / 32];
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (const float share : scratch) value += share;
  }
  return value;
}

/// All but the sums is at hand before the product has ended.
template <int D>
struct HeadRow {
  HeadRole role;
  int head, row;
  float4 low, high;

  __device__ HeadRow(const HeadInputs& in, HeadRole role_, int head_, int row_)
      : role(role_), head(head_), row(row_), low(), high(), dim(4 * static_cast<int>(threadIdx.x)) {
    const bool from_k =
        role == HeadRole::kKey || (role == HeadRole::kValue && in.layout.value_is_key);
    first_output = (role == HeadRole::kQuery ? 0
                    : from_k                 ? in.layout.k_tile
                                             : in.layout.v_tile) *
                       kTileRows +
                   head * D;
    if (dim >= D / 2) return;
    low_parts = in.sums.parts[(first_output + dim) / kTileRows];
    high_parts = in.sums.parts[(first_output + dim + D / 2) / kTileRows];
    if (role == HeadRole::kValue) return;
    const float* norm = role == HeadRole::kQuery ? in.q_norm : in.k_norm;
    const float2* turn = in.rope + static_cast<std::size_t>(row) * (D / 2);
    low_norm = load4(norm + dim);
    high_norm = load4(norm + dim + D / 2);
    turns[0] = load4(&turn[dim].x);
    turns[1] = load4(&turn[dim + 2].x);
  }

  /// Once the product has ended.
  __device__ void finish(const HeadInputs& in) {
    if (dim < D / 2) {
      const int n = first_output + dim, partner = n + D / 2;
      sum_two_parts<6>(in.sums, row, low_parts, n % kTileRows, high_parts, partner % kTileRows, low,
                       high);
    }
    const float squares = head_sum<D>(sum_of_squares(low) + sum_of_squares(high));
    const float inverse = inverse_rms(squares, D, in.eps);
    low = low * inverse;
    high = high * inverse;
    if (role != HeadRole::kValue) {
      const float4 a = low * low_norm, b = high * high_norm;
      const float4 c = {turns[0].x, turns[0].z, turns[1].x, turns[1].z};
      const float4 s = {turns[0].y, turns[0].w, turns[1].y, turns[1].w};
      low = a * c + b * s * -1.0f;
      high = b * c + a * s;
    }
    if (role == HeadRole::kQuery) return;
    bool fits = true;
    low = storable(low, fits);
    high = storable(high, fits);
    if (!fits) in.broken[row] = 1;
  }

  /// q or k in the order of pair_index(), v in that of its dimensions.
  __device__ void store_row(half* to) {
    store([&](int at, half2 v) {
      *reinterpret_cast<half2*>(to + (role == HeadRole::kValue ? at : pair_index(at))) = v;
    });
  }
  /// k or v at its place in the block of a page and KV head.
  __device__ void store_key(half* block, int key) {
    store([&](int at, half2 v) {
      if (role == HeadRole::kKey) {
        *reinterpret_cast<half2*>(block + k_index(key, at, D)) = v;
      } else {
        block[kPageTokens * D + v_index(key, at)] = __low2half(v);
        block[kPageTokens * D + v_index(key, at + 1)] = __high2half(v);
      }
    });
  }

 private:
  int dim;  // `low` begins here, `high` at dim + D / 2; none from D / 2 on
  int first_output;
  TileParts low_parts, high_parts;
  float4 low_norm = {}, high_norm = {}, turns[2] = {};

  template <typename To>
  __device__ void store(To&& to) {
    if (dim >= D / 2) return;
    to(dim, __floats2half2_rn(low.x, low.y));
    to(dim + 2, __floats2half2_rn(low.z, low.w));
    to(dim + D / 2, __floats2half2_rn(high.x, high.y));
    to(dim + D / 2 + 2, __floats2half2_rn(high.z, high.w));
  }
};

// A block a (row, head), heads in the order q, k, v.
template <int D>
__global__ void __launch_bounds__(kHeadThreads<D>)
    head_rows_kernel(HeadInputs in, const DeviceRow* rows, int q_rows, KvView kv, half* q) {
  let_next_start();
  const HeadLayout& layout = in.layout;
  const int row = blockIdx.x, index = blockIdx.y - layout.heads;
  const HeadRole role = index < 0                 ? HeadRole::kQuery
                        : index < layout.kv_heads ? HeadRole::kKey
                                                  : HeadRole::kValue;
  const int head = role == HeadRole::kQuery ? blockIdx.y : index % layout.kv_heads;
  HeadRow<D> values(in, role, head, row);
  const DeviceRow info = rows[row];
  half* block = nullptr;
  if (role != HeadRole::kQuery) {
    block = kv.page(info.span, info.position / kPageTokens) +
            static_cast<std::size_t>(head) * 2 * kPageTokens * D;
  }
  wait_for_previous();
  if (role == HeadRole::kQuery && row >= q_rows) return;
  values.finish(in);
  if (role == HeadRole::kQuery) {
    values.store_row(q + (static_cast<std::size_t>(row) * layout.heads + head) * D);
  } else {
    values.store_key(block, info.position % kPageTokens);
  }
}

}  // namespace

void qkv_finish(const HeadInputs& in, const DeviceRow* rows, int num_rows, int q_rows,
                const KvView& kv, half* q, cudaStream_t stream) {
  const HeadLayout& layout = in.layout;
  const int heads = layout.heads + (layout.k_tile >= 0 ? 2 * layout.kv_heads : 0);
  const auto run = [&]<int D>() {
    launch(head_rows_kernel<D>, dim3(num_rows, heads), kHeadThreads<D>, 0, stream, in, rows, q_rows,
           kv, q);
  };
  switch (layout.head_size) {  // checked by configure()
    case 32:
      return run.operator()<32>();
    case 64:
      return run.operator()<64>();
    case 128:
      return run.operator()<128>();
    case 256:
      return run.operator()<256>();
    default:
      return run.operator()<512>();
  }
}

}  // namespace tandem::kernels::cuda
