#include "tandem/model/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/model/dry_run_backend.h"
#include "tandem/model/gemma4.h"
#include "tandem/model/loader.h"
#include "tandem/model/mtp.h"

namespace tandem::model {
namespace {

using kernels::AttentionKind;

// With less, hardly a sentence fits beside another.
constexpr std::size_t kLeastKv = std::size_t{32} << 20;
// On the CPU each key and value of a head has 4 bytes more, 0.8 % of a head of 256.
constexpr std::size_t kKvValueBytes = 2;
constexpr int kUsualTokens = 1024;
// Rows in flight, and what whole pages hold beside a window.
constexpr int kWindowSlack = 512;

std::string mib(std::size_t bytes) {
  return fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20);
}

/// Runs the loader on a backend that keeps nothing.
core::Result<DryRunTotals> dry_run(const PlannedPair& pair, const kernels::Geometry& geometry,
                                   const kernels::Backend& sizes) {
  DryRunTotals totals;
  const auto backend = make_dry_run_backend(&totals, &sizes);
  TANDEM_ASSIGN(auto weights, load_target(pair.target, pair.target_config, *backend));
  TANDEM_ASSIGN(const auto model, Gemma4::create(pair.target_config, std::move(weights), *backend,
                                                 geometry.max_rows, geometry.max_kept_rows));
  if (pair.drafter == nullptr) return totals;
  TANDEM_ASSIGN(auto draft_weights, load_drafter(*pair.drafter, pair.drafter_config,
                                                 model.weights(), *backend, pair.draft_head));
  TANDEM_TRY(MtpDrafter::create(pair.target_config, pair.drafter_config, std::move(draft_weights),
                                *backend, geometry.max_sequences)
                 .status());
  return totals;
}

}  // namespace

std::string MemoryPlan::describe() const {
  const std::string embeddings =
      host_tables > 0 ? mib(tables) + " (" + mib(host_tables) + " in host memory)" : mib(tables);
  return fmt::format(
      "GPU memory: weights {}, per-layer embeddings {}, KV {}, workspace {}, driver and graphs "
      "about {}: {} of {}",
      mib(weights), embeddings, mib(kv), mib(workspace), mib(driver), mib(total()), mib(limit));
}

std::size_t kv_bytes_per_token(const ModelConfig& config, kernels::AttentionKind kind) {
  std::size_t bytes = 0;
  for (const kernels::KvLayerSpec& layer : config.kv_layers()) {
    if (layer.kind != kind) continue;
    bytes += 2 * kKvValueBytes * static_cast<std::size_t>(layer.kv_heads * layer.head_size);
  }
  return bytes;
}

std::size_t usual_kv_bytes(const ModelConfig& config, int sequences, int context) {
  const auto text_bytes = [&](int tokens) {
    const auto visible = static_cast<std::size_t>(std::min(tokens, config.window + kWindowSlack));
    return kv_bytes_per_token(config, AttentionKind::kFull) * static_cast<std::size_t>(tokens) +
           kv_bytes_per_token(config, AttentionKind::kSliding) * visible;
  };
  const std::size_t all = static_cast<std::size_t>(sequences) * text_bytes(kUsualTokens);
  return std::max({kUsualKvBytes, all, text_bytes(std::min(context, config.max_context))});
}

core::Result<MemoryPlan> plan_memory(const PlannedPair& pair, const kernels::Geometry& geometry,
                                     const kernels::Backend& backend, std::size_t limit) {
  const auto memory = backend.device_memory();
  TANDEM_CHECK(memory.has_value(), "a plan is for a device with memory of its own");
  TANDEM_ASSIGN(const DryRunTotals totals, dry_run(pair, geometry, backend));
  MemoryPlan plan;
  plan.weights = totals.packed_bytes;
  plan.tables = totals.table_bytes;
  plan.host_tables = totals.in_file_bytes;
  plan.workspace = totals.row_bytes + backend.workspace_bytes(geometry);
  plan.driver = memory->driver;
  // The driver has taken most of its share already.
  const std::size_t available = std::min(memory->free + memory->driver, memory->total);
  plan.limit = limit > 0 ? std::min(limit, available) : available;
  const std::size_t least = plan.fixed() + std::min(kLeastKv, geometry.kv_memory_bytes);
  if (least > plan.limit) {
    return core::resource_exhausted(fmt::format(
        "the model needs {} of GPU memory (weights {}, per-layer embeddings {}, workspace {}, "
        "driver and graphs about {}, and some for KV), but {} {}; take a smaller model or fewer "
        "--max-sequences{}",
        mib(least), mib(plan.weights), mib(plan.tables), mib(plan.workspace), mib(plan.driver),
        mib(plan.limit), plan.limit == limit ? "are what --gpu-memory allows" : "are free",
        plan.tables > 0 ? ", or --ple host" : ""));
  }
  plan.kv = std::min(geometry.kv_memory_bytes, plan.limit - plan.fixed());
  return plan;
}

}  // namespace tandem::model
