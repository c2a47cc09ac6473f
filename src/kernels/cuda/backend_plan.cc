// What the CUDA backend will take of the device's memory.

#include <algorithm>
#include <numeric>

#include "tandem/kernels/cuda/backend_impl.h"
#include "tandem/kernels/cuda/pack.h"
#include "tandem/kernels/cuda/read_rate.h"
#include "tandem/kernels/cuda/staged_rows.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::size_t kAttentionWorkspace = std::size_t{96} << 20;
// Measured on an H200: a context with this library's kernels and the steps of a load of 32 streams
// (552 MiB), and what blocks of weights leave unused (weight_memory.h; 30 to 320 MiB).
constexpr std::size_t kDriverBytes = std::size_t{688} << 20;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}
/// Rows of activations are allocated in whole blocks of the largest schedule.
std::size_t whole_blocks(int rows) {
  return size((rows + kRowBlock - 1) / kRowBlock * kRowBlock);
}

}  // namespace

std::size_t attention_bytes(const Geometry& geometry, int blocks) {
  std::size_t unit = 0;
  for (const KvLayerSpec& layer : geometry.kv_layers) {
    unit = std::max(unit, attention_block_bytes(layer.head_size) * size(layer.kv_heads));
  }
  return std::max(kAttentionWorkspace, unit * size(blocks));
}

std::size_t partial_bytes(const Geometry& geometry, int num_ctas) {
  if (geometry.max_outputs == 0) return 0;
  // The matrices of a group end in tiles of their own; a CTA begins inside a tile of another's.
  const int slots = geometry.max_outputs / kTileRows + kMaxGroup + num_ctas;
  return size(slots) * size(geometry.max_rows) * kTileRows * sizeof(float);
}

core::Result<double> CudaBackend::read_rate() {
  return measure_read_rate(stream_);
}

std::optional<DeviceMemory> CudaBackend::device_memory() const {
  DeviceMemory memory;
  if (cudaMemGetInfo(&memory.free, &memory.total) != cudaSuccess) return DeviceMemory{};
  memory.driver = kDriverBytes;
  return memory;
}

std::size_t CudaBackend::packed_bytes(const WeightView& view, WeightRole role) const {
  if (role == WeightRole::kVector || role == WeightRole::kTokenIds)
    return size(static_cast<int>(view.tensor.elements())) * sizeof(float);
  if (role == WeightRole::kTable && tables_on_host_) return 0;
  const auto kind = brick_kind(view, role, "");
  if (!kind.ok()) return view.bytes();  // pack() will refuse it
  const MatrixView matrix = {nullptr, *kind, static_cast<int>(view.rows()),
                             static_cast<int>(view.cols())};
  const bool has_scales = view.is_scaled() || *kind == BrickKind::kFp4;
  return cuda::packed_bytes(*kind, view.rows(), view.cols()) +
         (has_scales ? size(matrix.tiles()) * kTileRows * sizeof(float) : 0);
}

std::size_t CudaBackend::workspace_bytes(const Geometry& g) const {
  const std::size_t rows = size(g.max_rows), sequences = size(g.max_sequences);
  const int longest = (g.max_context + kPageTokens - 1) / kPageTokens;
  // Tables of blocks are as wide as a power of two, and attention's stats a sixteenth of its sums.
  const std::size_t attention = attention_bytes(g, 2 * longest);
  const std::size_t vocab = size((g.vocab + kTileRows - 1) / kTileRows * kTileRows);
  const auto rope = [&g](std::size_t sum, const std::vector<float>& f) {
    return sum + f.size() * sizeof(float2) * size(g.max_rows + g.max_sequences);
  };
  // Rows of experts: hidden values, the same rounded, and outputs; inputs of router and experts.
  const std::size_t entries = rows * size(g.top_experts);
  const std::size_t experts =
      g.top_experts == 0
          ? 0
          : entries * (2 * size(g.expert_ffn) * sizeof(half) + size(g.hidden) * sizeof(float)) +
                rows * size(g.hidden) * 2 * sizeof(half);
  return experts + partial_bytes(g, num_ctas_) + attention + attention / 16 +
         kLogitRows * vocab * sizeof(float) +  // logits
         StepSampling::device_bytes(g.max_kept_rows, g.vocab) +
         // Inputs of products: the widest, and three times as many columns in the others.
         4 * whole_blocks(g.max_rows) * size(g.max_inputs) * sizeof(half) +
         rows * size(g.max_inputs) * sizeof(half) +  // queries
         whole_blocks(std::max(g.max_kept_rows, g.max_sequences)) * 8 * size(num_ctas_) *
             sizeof(unsigned long long) +  // keys of the largest outputs
         std::accumulate(g.rope_frequencies.begin(), g.rope_frequencies.end(), std::size_t{0},
                         rope) +
         3 * (sequences + 1) * size(g.hidden) * sizeof(float) +
         4 * (sequences + 1) * size(longest) * sizeof(PageId);
}

}  // namespace tandem::kernels::cuda
