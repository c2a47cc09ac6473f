#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/load_draft_head.h"
#include "tandem/model/step_runner.h"

namespace tandem::model {

struct LoadOptions {
  /// A GGUF file or a Hugging Face directory each; the two may be of different kinds.
  std::string target_path;
  std::string draft_path;  ///< empty: no drafter
  int max_sequences = 32;
  int max_rows = 512;       ///< T of a step
  int max_context = 65536;  ///< clamped to what the model was trained for
  /// At most; 0: kUsualKvBytes, and on a device with memory of its own usual_kv_bytes().
  std::size_t kv_memory_bytes = 0;
  kernels::KvType kv_type = kernels::KvType::kF16;
  /// What a device may take in all, the driver's share included; 0: all that is free. The KV budget
  /// shrinks to fit.
  std::size_t device_memory_bytes = 0;
  DraftHead draft_head = DraftHead::kAuto;
  /// Rates at which drafts are accepted by chance, by position; empty: by what they say.
  std::vector<float> draft_acceptance;
  int max_kept_rows = 0;  ///< 0: max_sequences * (1 + kMaxDraft), at most max_rows
};

/// A loaded target with its drafter, ready to run steps. Owns weights and the backend.
class Model : public StepRunner {
 public:
  /// Opens, checks and packs. Every failure is one sentence: file, tensor or key, what to do.
  static core::Result<std::unique_ptr<Model>> load(const LoadOptions& options,
                                                   std::unique_ptr<kernels::Backend> backend);

  virtual const ModelConfig& config() const = 0;
  virtual bool has_drafter() const = 0;
  /// Whether the drafter chooses among the tokens of its best clusters only.
  virtual bool drafts_by_centroids() const = 0;
  virtual kernels::Backend& backend() = 0;

  /// Scores a text: runs `tokens` as one sequence in slot 0 in chunks of `chunk` rows and returns
  /// the softcapped logits of every row in [first_row, tokens.size()), [n, V]. Takes KV pages from
  /// id 0 on, so nothing else may be running. kInvalidArgument for an empty or too long text or an
  /// unknown token. For tests.
  virtual core::Result<std::vector<float>> score(std::span<const TokenId> tokens, int chunk,
                                                 int first_row) = 0;
};

}  // namespace tandem::model
