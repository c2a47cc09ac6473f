#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/engine/request.h"
#include "tandem/grammar/grammar.h"
#include "tandem/model/step_runner.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::testing {

/// Byte tokens 0..255, letters as whole tokens from kFirstLetter on, <eos> and <bos>.
inline constexpr TokenId kFirstLetter = 256;
inline constexpr TokenId kEos = 282;
inline constexpr int kScriptedVocab = 284;
std::shared_ptr<const tokenizer::Tokenizer> scripted_tokenizer();
/// Lists of short words, compiled for that vocabulary.
std::shared_ptr<const grammar::Grammar> scripted_grammar();

/// A 'model' whose next token is a hash of what it finds: all tokens through the full pages and the
/// window's tokens through the sliding pages. `eos_share` of all histories end. Other tokens have
/// smaller logits, which matter when rules change them.
struct ScriptedModel {
  int window = 8;
  double eos_share = 0.0;

  TokenId next(std::span<const TokenId> full, std::span<const TokenId> visible,
               const kernels::SamplingParams& sampling) const;
  /// Logits whose largest is that of `token`, others by a hash of it.
  static std::vector<float> logits(TokenId token);
  /// The same from the plain text.
  TokenId next(std::span<const TokenId> text, const kernels::SamplingParams& sampling) const;
};

/// Runs a ScriptedModel on pages that hold token ids, so that a wrong page table, a stale page or
/// a bad rollback changes the output. Whatever else a plan does wrong is listed in faults().
class ScriptedRunner final : public model::StepRunner {
 public:
  struct Options {
    int max_sequences = 4;
    int max_rows = 32;
    int max_kept_rows = 32;
    int max_context = 256;
    int max_draft = 6;
    bool runs_ahead = false;
    int page_tokens = 4;
    std::array<std::size_t, kernels::kNumAttentionKinds> page_bytes = {3, 2};
    std::size_t kv_memory_bytes = 400;
    std::array<int, kernels::kNumAttentionKinds> max_pages = {};  ///< 0: as the memory allows
    double draft_accuracy = 0.7;  ///< share of drafts that are the token to come
    TokenId broken_token = -1;    ///< spans with a row of this token are broken
    ScriptedModel model = {};
  };
  explicit ScriptedRunner(const Options& options);

  const Limits& limits() const override { return limits_; }
  void set_slot(int slot, const kernels::SamplingParams& sampling) override;
  core::Result<kernels::StepResult> step(const kernels::StepPlan& plan,
                                         const std::function<void()>& meanwhile) override;

  const std::vector<std::string>& faults() const { return faults_; }
  /// Whether the last step was one of the first two of its spans, rows and drafts to make.
  bool was_first_of_shape() const { return was_first_of_shape_; }
  /// The step with this number (from 0) and all later ones fail.
  void fail_from(int step) { fail_from_ = step; }
  int steps() const { return steps_; }
  /// Prompt rows of each step so far.
  const std::vector<int>& prompt_rows() const { return prompt_rows_; }

 private:
  struct Cell {
    Position position = -1;
    TokenId token = -1;
  };
  struct Slot {
    bool is_set = false;
    kernels::SamplingParams sampling;
    TokenId token = -1;
    Position position = -1;
    std::vector<TokenId> drafts;
  };

  void fault(std::string what);
  void check_plan(const kernels::StepPlan& plan);
  std::vector<TokenId> tokens_of(const kernels::Span& span) const;
  Cell* cell(const kernels::Span& span, int kind, Position position);
  void write(const kernels::Span& span, std::span<const TokenId> tokens);
  std::vector<TokenId> read(const kernels::Span& span, int kind, Position begin, Position end);
  TokenId choose(const kernels::Span& span, std::size_t row, Position position,
                 const kernels::SamplingParams& sampling, kernels::TokenLogprobs& logprobs);
  kernels::SpanResult run_span(const kernels::Span& span, std::span<const TokenId> tokens);
  void draft(const kernels::Span& span, Slot& slot);

  Options options_;
  Limits limits_;
  std::vector<Slot> slots_;
  std::array<std::vector<std::vector<Cell>>, kernels::kNumAttentionKinds> pages_;
  std::vector<std::string> faults_;
  std::vector<int> prompt_rows_;
  int steps_ = 0;
  int fail_from_ = -1;
  std::map<std::array<int, 3>, int> shapes_;  // steps of each
  bool was_first_of_shape_ = false;
};

/// What a request must yield, computed alone and token by token.
struct Expected {
  std::vector<TokenId> tokens;
  std::string text;
  engine::FinishReason finish = engine::FinishReason::kLength;
};
Expected oracle(const ScriptedModel& model, const tokenizer::Tokenizer& tokenizer,
                const engine::Request& request, int context);

}  // namespace tandem::testing
