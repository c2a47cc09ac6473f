#include "tandem/app/memory_need.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "tandem/app/option_text.h"
#include "tandem/app/step_rows.h"
#include "tandem/core/cgroup.h"
#include "tandem/core/checked_math.h"
#include "tandem/engine/engine.h"
#include "tandem/kernels/cpu/context.h"
#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/sizes.h"
#include "tandem/model/dry_run_backend.h"
#include "tandem/model/gemma4.h"
#include "tandem/model/loader.h"
#include "tandem/model/mtp.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using model::kv_bytes_per_token;
using model::ModelConfig;

using kernels::cpu::kPageTokens;

// Measured: the libraries, the server and what every thread keeps; the tokenizer's tables.
constexpr std::size_t kProgramBytes = std::size_t{14} << 20;
constexpr std::size_t kBytesPerToken = 176;

std::size_t floats(int rows, int cols) {
  return sizeof(float) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
}

/// The widest rows of a model's layers.
struct Widths {
  int heads = 0;  // H D
  int kv = 0;     // G D
  int ffn = 0;    // F
};

Widths widths(const ModelConfig& config) {
  Widths out;
  for (const model::LayerConfig& layer : config.layers) {
    out.heads = std::max(out.heads, layer.heads * layer.head_size);
    out.kv = std::max(out.kv, layer.kv_heads * layer.head_size);
    out.ffn = std::max(out.ffn, layer.ffn);
  }
  return out;
}

/// Int8 codes of the inputs with a scale for every 32, and e4m3 values with theirs.
std::size_t form_bytes(const model::DryRunTotals& totals, int rows) {
  return floats(rows, totals.max_code_inputs) * 3 / 8 + floats(rows, totals.max_e4m3_inputs);
}

/// Rows that one step of `rows` rows writes beside the model's own, at most.
std::size_t scratch_bytes(const ModelConfig& config, const model::DryRunTotals& totals, int rows) {
  const Widths w = widths(config);
  const int ple = static_cast<int>(config.layers.size()) * config.ple_width;
  const int inputs = config.hidden + w.heads;
  const int outputs =
      std::max({w.ffn, w.heads, ple}) + std::max(w.ffn, w.kv) + std::max(config.hidden, w.kv);
  std::size_t bytes = floats(rows, inputs + outputs) + form_bytes(totals, rows);
  if (config.experts > 0) {
    const int routed = std::min(kernels::cpu::kRoutedRows, rows * config.experts_per_token);
    bytes += floats(routed, 2 * config.hidden + 2 * config.expert_ffn + config.experts) +
             form_bytes(totals, routed);
  }
  return bytes;
}

/// Logits of rows that sample, and parts of long sequences' attention.
std::size_t shared_bytes(const ModelConfig& config, int sampled_rows, int context) {
  // So few tasks are split, if two members compute.
  constexpr int kSplitVectors = 6 * kernels::cpu::kTaskVectors;
  int head_size = 0;
  for (const model::LayerConfig& layer : config.layers) {
    head_size = std::max(head_size, layer.head_size);
  }
  const std::size_t row = floats(1, config.vocab);
  const std::size_t logits =
      std::max(row, std::min(kernels::cpu::kLogitBytes, floats(sampled_rows, config.vocab)));
  const int blocks = core::ceil_div(context, kernels::cpu::kBlockTokens);
  return logits + std::min(kernels::cpu::kPartialBytes,
                           floats(kSplitVectors, head_size + 2) * static_cast<std::size_t>(blocks));
}

/// KV of all sequences at full length, in whole pages. Sliding layers keep the window and the
/// rows in flight, which all sequences share.
std::size_t live_kv_bytes(const ModelConfig& config, const ServeBounds& bounds, int max_rows) {
  const int context = std::min(bounds.context, config.max_context);
  const int full = core::round_up(context, kPageTokens);
  const int window = std::min(full, core::round_up(config.window, kPageTokens) + kPageTokens);
  const auto sequences = static_cast<std::size_t>(bounds.max_sequences);
  const std::size_t in_flight = std::min(static_cast<std::size_t>(max_rows),
                                         sequences * static_cast<std::size_t>(full - window));
  return kv_bytes_per_token(config, AttentionKind::kFull) * sequences *
             static_cast<std::size_t>(full) +
         kv_bytes_per_token(config, AttentionKind::kSliding) *
             (sequences * static_cast<std::size_t>(window) + in_flight);
}

/// A drafter that fits is loaded; its bytes are added to the totals of `backend`.
core::Status add_drafter(const model::ModelFiles& target, const ModelConfig& config,
                         const model::TargetWeights& weights, const model::ModelFiles& drafter,
                         int max_sequences, kernels::Backend& backend) {
  TANDEM_ASSIGN(const ModelConfig draft_config, drafter.config());
  auto fits = model::check_pair(config, draft_config);
  if (fits.ok()) fits = model::check_same_vocab(target, drafter);
  if (!fits.ok()) return fits.with_context(drafter.path());
  TANDEM_ASSIGN(auto draft_weights, model::load_drafter(drafter, draft_config, weights, backend,
                                                        model::DraftHead::kAuto));
  return model::MtpDrafter::create(config, draft_config, std::move(draft_weights), backend,
                                   max_sequences)
      .status();
}

}  // namespace

core::Status check_kv_memory(const ModelConfig& config, std::size_t bytes) {
  const std::size_t least = kPageTokens * (kv_bytes_per_token(config, AttentionKind::kFull) +
                                           kv_bytes_per_token(config, AttentionKind::kSliding));
  if (bytes >= least) return {};
  return core::invalid_argument(fmt::format(
      "--kv-memory is {}, but a model with {} KV layers needs at least {}, and {} for every 1,000 "
      "tokens",
      format_size(bytes), config.kv_layers().size(), format_size(least),
      format_size(1000 * least / kPageTokens)));
}

core::Result<MemoryNeed> memory_need(const model::ModelFiles& target,
                                     const model::ModelFiles* drafter, const ServeBounds& bounds) {
  TANDEM_ASSIGN(const ModelConfig config, target.config());
  const int context = std::min(bounds.context, config.max_context);
  // No step has more rows than the sequences have tokens.
  const int max_rows = static_cast<int>(std::min<std::int64_t>(
      rows_of_step(bounds.max_sequences), std::int64_t{context} * bounds.max_sequences));
  // Adaptive drafts rarely reach half of their longest for all sequences at once.
  const int sampled_rows = std::min(bounds.max_sequences * (1 + kMaxDraft / 2), max_rows);
  const int max_kept = std::min(bounds.max_sequences * (1 + kMaxDraft), max_rows);
  model::DryRunTotals totals;
  const auto backend = model::make_dry_run_backend(&totals);
  TANDEM_ASSIGN(auto weights, model::load_target(target, config, *backend));
  TANDEM_ASSIGN(const auto model,
                model::Gemma4::create(config, std::move(weights), *backend, max_rows, max_kept));
  if (drafter != nullptr) {
    TANDEM_TRY(
        add_drafter(target, config, model.weights(), *drafter, bounds.max_sequences, *backend));
  }
  MemoryNeed need;
  need.program = kProgramBytes + kBytesPerToken * static_cast<std::size_t>(config.vocab);
  need.weights = totals.packed_bytes;
  need.in_file = totals.in_file_bytes;
  need.kv_live = live_kv_bytes(config, bounds, max_rows);
  need.kv_kept = bounds.kv_memory_bytes / engine::kPrefixCacheShare;
  need.kv_budget = bounds.kv_memory_bytes;
  need.workspace = totals.row_bytes + scratch_bytes(config, totals, max_rows) +
                   shared_bytes(config, sampled_rows, context);
  return need;
}

std::optional<std::uint64_t> available_memory() {
  std::optional<std::uint64_t> bytes = core::memory_limit();
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::uint64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) {
      return std::min(kib * 1024, bytes.value_or(kib * 1024));
    }
  }
  return bytes;
}

}  // namespace tandem::app
