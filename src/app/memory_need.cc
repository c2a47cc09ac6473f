#include "tandem/app/memory_need.h"

#include <algorithm>
#include <utility>

#include "tandem/app/dry_run_backend.h"
#include "tandem/app/step_rows.h"
#include "tandem/model/gemma4.h"
#include "tandem/model/loader.h"
#include "tandem/model/mtp.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using model::ModelConfig;

constexpr std::size_t kKvValueBytes = 2;  // f16, as the CPU backend keeps it
/// Logits that the CPU backend holds at once, at most; at least one row.
constexpr std::size_t kLogitBytes = std::size_t{32} << 20;

std::size_t floats(int rows, int cols) {
  return sizeof(float) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
}

/// Inputs and outputs of a layer's products over a step's rows, beside the rows themselves.
std::size_t scratch_bytes(const DryRunTotals& totals, int max_rows, int vocab) {
  const std::size_t products =
      3 * floats(max_rows, totals.max_inputs) + 3 * floats(max_rows, totals.max_outputs);
  const std::size_t logit_row = floats(1, vocab);
  const std::size_t logits = std::min(kLogitBytes, floats(max_rows, vocab));
  return products + std::max(logit_row, logits);
}

std::size_t kv_bytes(const ModelConfig& config, const ServeBounds& bounds, int max_rows) {
  const int context = std::min(bounds.context, config.max_context);
  // Sliding layers keep the window and the rows in flight.
  const int sliding = std::min(context, config.window + max_rows);
  const std::size_t one =
      kv_bytes_per_token(config, AttentionKind::kFull) * static_cast<std::size_t>(context) +
      kv_bytes_per_token(config, AttentionKind::kSliding) * static_cast<std::size_t>(sliding);
  return one * static_cast<std::size_t>(bounds.max_sequences);
}

}  // namespace

std::size_t kv_bytes_per_token(const ModelConfig& config, AttentionKind kind) {
  std::size_t bytes = 0;
  for (const kernels::KvLayerSpec& layer : config.kv_layers()) {
    if (layer.kind != kind) continue;
    bytes += 2 * kKvValueBytes * static_cast<std::size_t>(layer.kv_heads * layer.head_size);
  }
  return bytes;
}

core::Result<MemoryNeed> memory_need(const model::ModelFiles& target,
                                     const model::ModelFiles* drafter, const ServeBounds& bounds) {
  TANDEM_ASSIGN(const ModelConfig config, target.config());
  const int max_rows = rows_of_step(bounds.max_sequences);
  DryRunTotals totals;
  const auto backend = make_dry_run_backend(&totals);
  TANDEM_ASSIGN(auto weights, model::load_target(target, config, *backend));
  TANDEM_ASSIGN(const auto model,
                model::Gemma4::create(config, std::move(weights), *backend, max_rows, max_rows));
  if (drafter != nullptr) {
    TANDEM_ASSIGN(const ModelConfig draft_config, drafter->config());
    auto fits = model::check_pair(config, draft_config);
    if (fits.ok()) fits = model::check_same_vocab(target, *drafter);
    if (!fits.ok()) return fits.with_context(drafter->path());
    TANDEM_ASSIGN(auto draft_weights, model::load_drafter(*drafter, draft_config, model.weights(),
                                                          *backend, model::DraftHead::kAuto));
    TANDEM_TRY(model::MtpDrafter::create(config, draft_config, std::move(draft_weights), *backend,
                                         bounds.max_sequences)
                   .status());
  }
  MemoryNeed need;
  need.weights = totals.packed_bytes;
  need.in_file = totals.in_file_bytes;
  need.kv_wished = kv_bytes(config, bounds, max_rows);
  need.kv = std::min(need.kv_wished, bounds.kv_memory_bytes);
  need.workspace = totals.row_bytes + scratch_bytes(totals, max_rows, config.vocab);
  return need;
}

}  // namespace tandem::app
