#pragma once

#include <array>
#include <random>
#include <span>
#include <vector>

#include "tandem/kernels/step.h"
#include "tandem/model/model.h"

namespace tandem::testing {

/// One sequence to generate.
struct Sequence {
  std::vector<TokenId> prompt;
  int num_tokens = 0;  ///< to generate; end tokens do not stop it
  int drafts = 0;      ///< K
  int chunk = 512;     ///< prompt rows of a step
  int first_step = 0;  ///< step of the batch in which it joins
  kernels::SamplingParams sampling = {.temperature = 0.0F};
};

struct Generated {
  std::vector<TokenId> tokens;
  int rounds = 0;                           ///< verifications
  std::array<int, kMaxDraft> drafted = {};  ///< by position
  std::array<int, kMaxDraft> accepted = {};
};

/// The least scheduler that can run a model: all sequences advance in every step, pages come from a
/// shuffled pool and leave with the sliding window, so that stale contents and ids out of order are
/// the rule.
class Driver {
 public:
  explicit Driver(model::Model& model, unsigned seed = 1);

  /// Runs the sequences as one batch. Fails the running test if a step does.
  std::vector<Generated> generate(std::span<const Sequence> sequences);
  Generated generate(const Sequence& sequence) { return generate(std::span(&sequence, 1))[0]; }

 private:
  struct Running {
    const Sequence* request = nullptr;
    int slot = 0;
    int prompt_done = 0;
    Position position = 0;  // of the next input token
    int held_drafts = 0;
    std::array<std::vector<PageId>, kernels::kNumAttentionKinds> pages;
    Generated out;

    bool finished() const { return static_cast<int>(out.tokens.size()) >= request->num_tokens; }
    int remaining() const { return request->num_tokens - static_cast<int>(out.tokens.size()); }
  };

  bool plan(Running& running, int& rows_left);
  void add_pages(Running& running, Position end);
  void drop_pages(Running& running, Position window_end);
  void apply(const kernels::SpanResult& result, const kernels::Span& span, Running& running);

  model::Model& model_;
  std::mt19937 random_;
  std::array<std::vector<PageId>, kernels::kNumAttentionKinds> free_pages_;
  kernels::StepPlan plan_;
};

/// Runs a prompt in slot 0 as one chunk whose last row is sampled greedily, and drafts: the slot
/// then holds the token, its hidden row, the drafts and the drafter's last row.
kernels::SlotSnapshot run_prompt(model::Model& model, std::span<const TokenId> ids, int drafts);

}  // namespace tandem::testing
