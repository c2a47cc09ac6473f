// A head of q, k or v of one row, by a warp: sums of parts, norm, RoPE, fp16.

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

/// A lane has, kQuads times, four dimensions of the first half and their RoPE partners in the
/// second. All but the sums is at hand before the product has
/// ended.
template <int D>
struct HeadRow {
  static constexpr int kQuads = D > 256 ? 2 : 1;
  HeadRole role;
  int head, row;
  float4 low[kQuads], high[kQuads];

  __device__ HeadRow(const HeadInputs& in, HeadRole role_, int head_, int row_)
      : role(role_), head(head_), row(row_), low(), high() {
    const bool from_k =
        role == HeadRole::kKey || (role == HeadRole::kValue && in.layout.value_is_key);
    first_output = (role == HeadRole::kQuery ? 0
                    : from_k                 ? in.layout.k_tile
                                             : in.layout.v_tile) *
                       kTileRows +
                   head * D;
    const float* norm = role == HeadRole::kQuery ? in.q_norm : in.k_norm;
    const float2* turn = in.rope + static_cast<std::size_t>(row) * (D / 2);
    each([&](int i, int dim) {
      low_parts[i] = in.sums.parts[(first_output + dim) / kTileRows];
      high_parts[i] = in.sums.parts[(first_output + dim + D / 2) / kTileRows];
      if (role == HeadRole::kValue) return;
      low_norm[i] = load4(norm + dim);
      high_norm[i] = load4(norm + dim + D / 2);
      turns[i][0] = load4(&turn[dim].x);
      turns[i][1] = load4(&turn[dim + 2].x);
    });
  }

  /// body(i, dim): low[i] begins at dimension `dim`, high[i] at dim + D / 2.
  template <typename Body>
  __device__ void each(Body&& body) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int dim = 4 * static_cast<int>(threadIdx.x % 32 + 32 * i);
      if (dim < D / 2) body(i, dim);
    }
  }

  /// Once the product has ended.
  __device__ void finish(const HeadInputs& in) {
    each([&](int i, int dim) {
      const int n = first_output + dim, partner = n + D / 2;
      sum_two_parts<5>(in.sums, row, low_parts[i], n % kTileRows, high_parts[i],
                       partner % kTileRows, low[i], high[i]);
    });
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      squares += warp_sum(sum_of_squares(low[i]) + sum_of_squares(high[i]));
    }
    const float inverse = inverse_rms(squares, D, in.eps);
    bool fits = true;
    each([&](int i, int) {
      low[i] = low[i] * inverse;
      high[i] = high[i] * inverse;
      if (role != HeadRole::kValue) {
        const float4 a = low[i] * low_norm[i], b = high[i] * high_norm[i];
        const float4 c = {turns[i][0].x, turns[i][0].z, turns[i][1].x, turns[i][1].z};
        const float4 s = {turns[i][0].y, turns[i][0].w, turns[i][1].y, turns[i][1].w};
        low[i] = a * c + b * s * -1.0f;
        high[i] = b * c + a * s;
      }
      if (role == HeadRole::kQuery) return;
      low[i] = storable(low[i], fits);
      high[i] = storable(high[i], fits);
    });
    if (!fits) in.broken[row] = 1;
  }

  /// q or k in the order of pair_index(), v in that of its dimensions.
  __device__ void store_row(half* to) {
    store([&](int dim, half2 v) {
      *reinterpret_cast<half2*>(to + (role == HeadRole::kValue ? dim : pair_index(dim))) = v;
    });
  }
  /// k or v at its place in the block of a page and KV head.
  __device__ void store_key(half* block, int key) {
    store([&](int dim, half2 v) {
      if (role == HeadRole::kKey) {
        *reinterpret_cast<half2*>(block + k_index(key, dim, D)) = v;
      } else {
        block[kPageTokens * D + v_index(key, dim)] = __low2half(v);
        block[kPageTokens * D + v_index(key, dim + 1)] = __high2half(v);
      }
    });
  }

 private:
  int first_output;
  TileParts low_parts[kQuads], high_parts[kQuads];
  float4 low_norm[kQuads], high_norm[kQuads], turns[kQuads][2];

  template <typename To>
  __device__ void store(To&& to) {
    each([&](int i, int dim) {
      to(dim, __floats2half2_rn(low[i].x, low[i].y));
      to(dim + 2, __floats2half2_rn(low[i].z, low[i].w));
      to(dim + D / 2, __floats2half2_rn(high[i].x, high[i].y));
      to(dim + D / 2 + 2, __floats2half2_rn(high[i].z, high[i].w));
    });
  }
};

// A warp a (row, head), heads in the order q, k, v.
template <int D>
__global__ void __launch_bounds__(32)
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
  const auto kernel = layout.head_size == 32    ? head_rows_kernel<32>
                      : layout.head_size == 64  ? head_rows_kernel<64>
                      : layout.head_size == 128 ? head_rows_kernel<128>
                      : layout.head_size == 256 ? head_rows_kernel<256>
                                                : head_rows_kernel<512>;  // checked by configure()
  launch(kernel, dim3(num_rows, heads), 32, 0, stream, in, rows, q_rows, kv, q);
}

}  // namespace tandem::kernels::cuda
