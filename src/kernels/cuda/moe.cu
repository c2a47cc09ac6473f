// Products of experts: a block multiplies 64 outputs of gate and up, or 128 of down, of one expert
// by the rows that chose it, 8 NT at a time. Bricks are copied in bulk into a ring of stages, the
// rows that belong to the expert are gathered beside them. Each sum is one chain over all of K, so
// that no bit depends on NT or on who else chose the expert.
//
// Bound: bytes while few rows choose an expert. Two blocks share an SM and have what fits their
// shared memory under way (Q4_K, NT = 1: 4 stages of 23 KB each); the first stages are asked for
// before the kernel ahead has ended.

#include <algorithm>

#include "tandem/kernels/cuda/gemm_schedule.cuh"
#include "tandem/kernels/cuda/mma_sync.cuh"
#include "tandem/kernels/cuda/moe.h"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_math.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 256;  // two bricks, 16 outputs a warp
// Up to so many rows for each expert on average, eight at a time are enough.
constexpr int kFewRows = 4;

/// Asynchronous copies of 16 bytes, and their arrival at a barrier that counts every thread.
__device__ inline void copy16(void* dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(dst)), "l"(src)
               : "memory");
}
__device__ inline void arrive_after_copies(std::uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_address(bar))
               : "memory");
}

/// Where products go: gated ones to `gated`, others to `sums` [entries, E].
struct ExpertOutput {
  HalfRows gated;
  float* sums;
  std::int32_t* broken;
};

/// Streams an expert's bricks and rows into the ring: its superblocks once for each 8 NT entries.
template <int NT, bool kGated>
struct ExpertLoader {
  const ExpertArguments& a;
  const HalfRows& x;
  const ExpertViews& w;
  ActiveExpert expert;
  int superblocks, unit_bytes, stage_bytes;
  std::uint8_t* smem;
  std::uint64_t* full;
  int sb = 0, first;  // of the next rows
  int rows[NT];       // index of this thread's share of each, negative: nothing there

  __device__ void bricks(int stage, int superblock) const {
    std::uint8_t* const to = smem + stage * stage_bytes;
    const int tile = blockIdx.x;
    if constexpr (kGated) {
      const std::size_t unit = static_cast<std::size_t>(tile / 2) * superblocks + superblock;
      const std::size_t brick = 2 * unit + tile % 2;
      const int gate = brick_bytes(w.gate.kind), up = brick_bytes(w.up.kind);
      mbarrier_expect(&full[stage], gate + up);
      bulk_copy(to, w.gate.bricks + brick * gate, gate, &full[stage]);
      bulk_copy(to + gate, w.up.bricks + brick * up, up, &full[stage]);
    } else {
      const std::size_t unit = static_cast<std::size_t>(tile) * superblocks + superblock;
      const int bytes = 2 * brick_bytes(w.down.kind);
      mbarrier_expect(&full[stage], bytes);
      bulk_copy(to, w.down.bricks + unit * bytes, bytes, &full[stage]);
    }
  }
  /// By all threads: 16 bytes of one row of each tile.
  __device__ void next_rows(int stage) {
    const int piece = threadIdx.x / 8, row_of_tile = threadIdx.x % 8;
    if (sb == 0) {
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        const int i = first + 8 * t + row_of_tile;
        rows[t] = -1;
        if (i >= expert.end) continue;
        const int row = a.entries[i] / (kGated ? a.top_k : 1);
        rows[t] = row / 8 * 2048 + piece * 64 + row % 8 * 8;
      }
    }
    const half* from = x.data + static_cast<std::size_t>(sb) * x.row_tiles * 2048;
    std::uint8_t* const to = smem + stage * stage_bytes + unit_bytes + threadIdx.x * 16;
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      if (rows[t] >= 0) copy16(to + t * 4096, from + rows[t]);
    }
    arrive_after_copies(&full[stage]);
    if (++sb == superblocks) {
      sb = 0;
      first += 8 * NT;
    }
  }
};

template <int NT>
__device__ void multiply_brick(BrickKind kind, const std::uint8_t* brick, const std::uint8_t* rows,
                               float (&acc)[NT][4]) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  switch (kind) {
    case BrickKind::kQ4K:
      return MmaSync::multiply<BrickKind::kQ4K, NT>(brick, rows, warp, lane, acc);
    case BrickKind::kQ6K:
      return MmaSync::multiply<BrickKind::kQ6K, NT>(brick, rows, warp, lane, acc);
    case BrickKind::kQ8:
      return MmaSync::multiply<BrickKind::kQ8, NT>(brick, rows, warp, lane, acc);
    case BrickKind::kF8:
      return MmaSync::multiply<BrickKind::kF8, NT>(brick, rows, warp, lane, acc);
    case BrickKind::kFp4:
      return MmaSync::multiply<BrickKind::kFp4, NT>(brick, rows, warp, lane, acc);
    case BrickKind::kF16:
      return MmaSync::multiply<BrickKind::kF16, NT>(brick, rows, warp, lane, acc);
    case BrickKind::kE4m3:  // of linears alone
      break;
  }
}

__device__ float output_scale(const MatrixView& w, int output) {
  return brick_unit(w.kind) * (w.row_scales == nullptr ? 1.0f : w.row_scales[output]);
}

/// What the sums of up to 8 NT entries need when they are done.
template <int NT>
struct ExpertPass {
  int ids[8 * NT];  // of entries, negative behind the last one
  float scales[8 * NT];
  float4 ups[4][NT][32];
};

/// Calls body(entry, its input's scale, output, t, j) for every sum of this lane that counts.
template <int NT, typename Body>
__device__ void each_sum(const ExpertPass<NT>& pass, int first_output, int outputs, Body body) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < NT; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 8 * t + 2 * (lane % 4) + j % 2;
      const int output = first_output + lane / 4 + j / 2 * 8;
      if (pass.ids[i] >= 0 && output < outputs) {
        body(pass.ids[i], pass.scales[i], output, t, j);
      }
    }
  }
}

/// Stores what the block's sums are for; all threads.
template <int NT, bool kGated>
__device__ void store_sums(const ExpertArguments& a, const ExpertViews& w, ExpertPass<NT>& pass,
                           const float (&acc)[NT][4], const ExpertOutput& out) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (!kGated) {
    each_sum(pass, kTileRows * static_cast<int>(blockIdx.x) + 16 * warp, a.width,
             [&](int entry, float scale, int output, int t, int j) {
               out.sums[static_cast<std::size_t>(entry) * a.width + output] =
                   acc[t][j] * scale * output_scale(w.down, output);
             });
    return;
  }
  if (warp >= 4) {
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      pass.ups[warp - 4][t][lane] = {acc[t][0], acc[t][1], acc[t][2], acc[t][3]};
    }
  }
  __syncthreads();
  if (warp >= 4) return;
  each_sum(pass, kBrickRows * static_cast<int>(blockIdx.x) + 16 * warp, a.ffn,
           [&](int entry, float scale, int output, int t, int j) {
             const float4 four = pass.ups[warp][t][lane];
             const float ups[4] = {four.x, four.y, four.z, four.w};
             const float g = acc[t][j] * scale * output_scale(w.gate, output);
             const float u = ups[j] * scale * output_scale(w.up, output);
             const float v = gelu_tanh(g) * u * (1.0f / kGateScale);
             if (!(fabsf(v) <= 65504.0f)) out.broken[entry / a.top_k] = 1;
             out.gated.data[activation_index(entry, output, out.gated.row_tiles)] =
                 __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f));
             if (output == 0) out.gated.scale[entry] = kGateScale;
           });
}

template <int NT, bool kGated>
__global__ void __launch_bounds__(kThreads, 2)
    expert_kernel(ExpertArguments a, HalfRows x, ExpertOutput out, int unit_bytes, int stages) {
  extern __shared__ __align__(128) std::uint8_t smem[];
  __shared__ std::uint64_t full[kMaxStages];
  __shared__ ExpertPass<NT> pass;
  let_next_start();
  const ActiveExpert expert = a.active[blockIdx.y];
  if (expert.begin == expert.end) return;
  const ExpertViews w = a.views[expert.expert];
  const int superblocks = (kGated ? w.gate : w.down).superblocks();
  const int stage_bytes = unit_bytes + NT * 4096;
  const int units = (expert.end - expert.begin + 8 * NT - 1) / (8 * NT) * superblocks;
  const int ahead = min(stages, units);
  ExpertLoader<NT, kGated> load{a,           x,    w,    expert, superblocks, unit_bytes,
                                stage_bytes, smem, full, 0,      expert.begin};
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) mbarrier_init(&full[s], kThreads + 1);
    fence_barrier_init();
    for (int u = 0; u < ahead; ++u) load.bricks(u, u % superblocks);
  }
  __syncthreads();
  wait_for_previous();
  for (int u = 0; u < ahead; ++u) load.next_rows(u);

  const int side = threadIdx.x / 128;
  const BrickKind kind = kGated ? (side == 0 ? w.gate.kind : w.up.kind) : w.down.kind;
  const int brick_at = side * brick_bytes(kGated ? w.gate.kind : w.down.kind);
  float acc[NT][4] = {};
  RingPlace at;
  for (int u = 0, sb = 0, first = expert.begin; u < units; ++u) {
    __syncthreads();  // the stage and the pass before are done with
    if (const int next = u - 1 + stages; u > 0 && next < units) {
      const int stage = (u - 1) % stages;
      if (threadIdx.x == 0) load.bricks(stage, next % superblocks);
      load.next_rows(stage);
    }
    if (sb == 0 && threadIdx.x < 8 * NT) {
      const int i = first + static_cast<int>(threadIdx.x);
      const int entry = i < expert.end ? a.entries[i] : -1;
      pass.ids[threadIdx.x] = entry;
      if (entry >= 0) pass.scales[threadIdx.x] = x.scale[kGated ? entry / a.top_k : entry];
    }
    mbarrier_wait(&full[at.stage], at.parity);
    const std::uint8_t* const stage = smem + at.stage * stage_bytes;
    multiply_brick<NT>(kind, stage + brick_at, stage + unit_bytes, acc);
    at.advance(stages);
    if (++sb < superblocks) continue;
    __syncthreads();
    store_sums<NT, kGated>(a, w, pass, acc, out);
#pragma unroll
    for (int t = 0; t < NT; ++t) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    sb = 0;
    first += 8 * NT;
  }
}

template <int NT, bool kGated>
void launch_experts(const ExpertArguments& a, const HalfRows& x, int rows, const ExpertOutput& out,
                    cudaStream_t stream) {
  constexpr int kPassBytes = sizeof(ExpertPass<NT>);
  const int unit_bytes = kGated ? a.gate_bytes : a.down_bytes;
  const int stage_bytes = unit_bytes + NT * 4096;
  int stages = std::min(kMaxStages, (stage_budget().shared - kPassBytes) / stage_bytes);
  if (stages < 2) {
    stages = std::min(kMaxStages, (stage_budget().alone - kPassBytes) / stage_bytes);
  }
  const int per_block = kGated ? kBrickRows : kTileRows;
  const dim3 grid(static_cast<unsigned>(((kGated ? a.ffn : a.width) + per_block - 1) / per_block),
                  static_cast<unsigned>(std::min(a.experts, rows * a.top_k)));
  launch(expert_kernel<NT, kGated>, grid, kThreads, static_cast<std::size_t>(stages) * stage_bytes,
         stream, a, x, out, unit_bytes, stages);
}

template <bool kGated>
void launch_experts(const ExpertArguments& a, const HalfRows& x, int rows, const ExpertOutput& out,
                    cudaStream_t stream) {
  if (rows * a.top_k <= kFewRows * a.experts) {
    launch_experts<1, kGated>(a, x, rows, out, stream);
  } else {
    launch_experts<4, kGated>(a, x, rows, out, stream);
  }
}

template <int NT, bool kGated>
core::Status prepare() {
  TANDEM_CUDA(
      cudaFuncSetAttribute(expert_kernel<NT, kGated>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           stage_budget().alone - static_cast<int>(sizeof(ExpertPass<NT>))));
  return {};
}

}  // namespace

core::Status prepare_experts() {
  TANDEM_TRY((prepare<1, false>()));
  TANDEM_TRY((prepare<1, true>()));
  TANDEM_TRY((prepare<4, false>()));
  return prepare<4, true>();
}

void expert_gates(const ExpertArguments& a, const HalfRows& x, int rows, const HalfRows& out,
                  std::int32_t* broken, cudaStream_t stream) {
  launch_experts<true>(a, x, rows, {out, nullptr, broken}, stream);
}

void expert_downs(const ExpertArguments& a, const HalfRows& x, int rows, float* out,
                  cudaStream_t stream) {
  launch_experts<false>(a, x, rows, {{}, out, nullptr}, stream);
}

}  // namespace tandem::kernels::cuda
