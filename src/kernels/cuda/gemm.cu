// y = W x for bricks of any kind, for few rows: mma.sync m16n8k16, weights as A, up to 64 rows of
// activations as B.
//
// Bound: bytes for up to about 16 rows, expansion and tensor cores above. Two CTAs share an SM.
// Measured: docs/performance-gpu.md.

#include <string>

#include "tandem/kernels/cuda/gemm_schedule.cuh"
#include "tandem/kernels/cuda/mma_sync.cuh"

namespace tandem::kernels::cuda {

const StageBudget& stage_budget() {
  static const StageBudget budget = [] {
    int device = 0, per_sm = 0, per_block = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const int reserved = 2048;  // barriers and the system's share
    return StageBudget{std::min(per_sm / 2, per_block) - reserved, per_block - reserved};
  }();
  return budget;
}

namespace {

// From here on wgmma is faster, whose shape does not depend on how many of its rows are used.
constexpr int kNarrowRows = 16;

template <int NT, bool kLargestOnly>
__global__ void __launch_bounds__(kMathThreads + 32, 2) narrow_kernel(GemmArguments g) {
  multiply_run<MmaSync, NT, kLargestOnly>(g);
}

/// As many rows at once as there are and as fit beside the weights in `fewest` stages.
template <bool kLargestOnly>
Launched launch_narrow(const GemmArguments& g, int rows, cudaStream_t stream, int fewest) {
  Launched launched = Launched::kNot;
  if (rows > 32) launched = launch_run<8>(narrow_kernel<8, kLargestOnly>, g, rows, stream, fewest);
  if (launched == Launched::kNot && rows > 16) {
    launched = launch_run<4>(narrow_kernel<4, kLargestOnly>, g, rows, stream, fewest);
  }
  if (launched == Launched::kNot && rows > 8) {
    launched = launch_run<2>(narrow_kernel<2, kLargestOnly>, g, rows, stream, fewest);
  }
  if (launched != Launched::kNot) return launched;
  return launch_run<1>(narrow_kernel<1, kLargestOnly>, g, rows, stream, fewest);
}

template <bool kLargestOnly>
Launched launch_gemm(const GemmArguments& g, int rows, cudaStream_t stream) {
  if (launch_dense(g, rows, kLargestOnly, stream)) return Launched::kRuns;
  if (rows > kNarrowRows) {
    const Launched launched = launch_wide(g, rows, kLargestOnly, stream);
    if (launched != Launched::kNot) return launched;
  }
  const Launched launched = launch_narrow<kLargestOnly>(g, rows, stream, 2);
  if (launched != Launched::kNot) return launched;
  // Halves where a block has 99 KB: nothing is fetched meanwhile. create() has checked that it
  // fits.
  return launch_narrow<kLargestOnly>(g, rows, stream, 1);
}

template <int NT>
core::Status prepare_schedule() {
  const int bytes = stage_budget().alone;
  TANDEM_CUDA(cudaFuncSetAttribute(narrow_kernel<NT, false>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  TANDEM_CUDA(cudaFuncSetAttribute(narrow_kernel<NT, true>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  return {};
}

/// Whether a stage of the smallest schedule fits into a block's shared memory.
core::Status check_fits(int unit_bytes) {
  const int needed = stage_size(unit_bytes, 1), most = stage_budget().alone;
  if (needed <= most) return {};
  return core::unimplemented("products with weights of this type take " + std::to_string(needed) +
                             " bytes of shared memory, of which a block of this GPU has " +
                             std::to_string(most) + "; use --device cpu");
}

/// Of tile t with the runs, or pairs of runs, first .. last.
TileParts slots_of(int first, int last, int t, int lacks_first) {
  return {first + t, static_cast<std::int16_t>(last - first + 1),
          static_cast<std::int16_t>(lacks_first)};
}

}  // namespace

core::Status prepare_gemm() {
  TANDEM_TRY(prepare_schedule<1>());
  TANDEM_TRY(prepare_schedule<2>());
  TANDEM_TRY(prepare_schedule<4>());
  TANDEM_TRY(prepare_schedule<8>());
  TANDEM_TRY(prepare_dense());
  return prepare_wide();
}

core::Result<GemmGroup> GemmGroup::create(const std::vector<MatrixView>& matrices, int num_ctas,
                                          bool whole_tiles) {
  GemmGroup group;
  group.superblocks_ = matrices.front().superblocks();
  group.whole_tiles_ = whole_tiles;
  group.input_ = matrices.front().input;
  TANDEM_CHECK(matrices.size() <= kMaxGroup, "a group has few matrices");
  for (const MatrixView& m : matrices) {
    TANDEM_CHECK(m.superblocks() == group.superblocks_, "matrices of a group share their input");
    if (m.input != matrices.front().input) {
      return core::unimplemented(
          "q, k and v, or gate and up, of a layer round their inputs to e4m3 in different ways, "
          "which is not built for CUDA; use --device cpu");
    }
    const int unit_bytes = 2 * brick_bytes(m.kind);
    group.ranges_[static_cast<std::size_t>(group.num_matrices_++)] = {
        m.bricks, group.num_tiles_, m.kind, unit_bytes, m.row_scales};
    group.unit_bytes_ = std::max(group.unit_bytes_, unit_bytes);
    group.num_tiles_ += m.tiles();
  }
  if (has_dense_schedule(matrices)) {
    DenseCuts cuts = dense_cuts(group.num_tiles_, group.superblocks_, num_ctas, whole_tiles);
    group.runs_ = cuts.runs;
    group.slots_ = cuts.slots;
    group.keys_per_row_ = 8 * kPair * cuts.runs;
    TANDEM_TRY(group.keep(std::move(cuts.parts), {}));
    return core::Result<GemmGroup>(std::move(group));
  }
  TANDEM_TRY(check_fits(group.unit_bytes_));
  const long long units =
      static_cast<long long>(whole_tiles ? 1 : group.superblocks_) * group.num_tiles_;
  // A unit for each CTA is as fast as two for half of them, but leaves twice as many parts.
  const bool have_two = !whole_tiles && units > num_ctas / 2 && units <= num_ctas;
  group.runs_ = static_cast<int>(have_two ? units / 2 : std::min<long long>(num_ctas, units));
  TANDEM_CHECK(units * (group.runs_ + 2) < std::numeric_limits<int>::max(),
               "units times runs is an int");
  // From then on a CTA that is alone on its SM has two runs.
  group.in_pairs_ = !whole_tiles && group.runs_ > num_ctas / 2;
  std::vector<TileParts> parts, pairs;
  for (int t = 0; t < group.num_tiles_; ++t) {
    // Run r has the units [units r / runs, units (r + 1) / runs).
    const auto owner = [&](long long u) {
      return static_cast<int>(((u + 1) * group.runs_ - 1) / units);
    };
    const int first = owner(static_cast<long long>(t) * group.superblocks_);
    const int last = owner(static_cast<long long>(t + 1) * group.superblocks_ - 1);
    const int lacks_first = group.in_pairs_ ? first % 2 : 0;
    parts.push_back(whole_tiles ? TileParts{t, 1}
                                : slots_of(first - lacks_first, last, t, lacks_first));
    if (group.in_pairs_) pairs.push_back(slots_of(first / 2, last / 2, t, 0));
  }
  group.slots_ = parts.back().first_slot + parts.back().count;
  group.keys_per_row_ = 8 * group.runs_;
  TANDEM_TRY(group.keep(parts, pairs));
  return core::Result<GemmGroup>(std::move(group));
}

core::Status GemmGroup::keep(std::vector<TileParts> parts, const std::vector<TileParts>& pairs) {
  parts.resize(static_cast<std::size_t>(pairs_at()));
  parts.insert(parts.end(), pairs.begin(), pairs.end());
  TANDEM_ASSIGN(parts_, DeviceBuffer::copy_of(parts));
  return {};
}

Partials GemmGroup::run(const HalfRows& x, int rows, float* partials, int max_rows,
                        cudaStream_t stream) const {
  TANDEM_CHECK((x.cols + kBrickCols - 1) / kBrickCols == superblocks_,
               "the input has another width");
  const Launched launched = launch_gemm<false>({ranges_[0],
                                                ranges_[1],
                                                ranges_[2],
                                                reinterpret_cast<const uint4*>(x.data),
                                                partials,
                                                num_tiles_,
                                                superblocks_,
                                                runs_,
                                                x.row_tiles,
                                                max_rows,
                                                unit_bytes_,
                                                whole_tiles_,
                                                in_pairs_,
                                                {}},
                                               rows, stream);
  const bool has_pairs = launched == Launched::kPairs;
  const TileParts* table = parts_.as<TileParts>();
  return {partials, table + (has_pairs ? pairs_at() : 0),
          x.scale,  reinterpret_cast<const float*>(table + zeros_at()),
          max_rows, in_pairs_ && !has_pairs};
}

void GemmGroup::run_largest(const HalfRows& x, int rows, const LargestOutputs& out,
                            cudaStream_t stream) const {
  TANDEM_CHECK(whole_tiles_ && num_matrices_ == 1, "largest outputs are those of one matrix");
  launch_gemm<true>(
      {ranges_[0], ranges_[1], ranges_[2], reinterpret_cast<const uint4*>(x.data), nullptr,
       num_tiles_, superblocks_, runs_, x.row_tiles, 0, unit_bytes_, whole_tiles_, in_pairs_, out},
      rows, stream);
}

}  // namespace tandem::kernels::cuda
