#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/engine/request.h"
#include "tandem/kernels/step.h"

namespace tandem::engine {

/// Logprobs of a prompt's own tokens, gathered chunk by chunk. A row's are the same however the
/// prompt was cut, so that a preempted prompt goes on where it was. Never holds logits. Thread:
/// engine.
class PromptScores {
 public:
  /// Null if the request asks for none.
  static std::unique_ptr<PromptScores> make(const Request& request) {
    if (!request.prompt_logprobs) return nullptr;
    return std::unique_ptr<PromptScores>(new PromptScores(*request.prompt_logprobs));
  }

  /// Rules of the rows before `next`, the tokens to score. Valid until the next call.
  std::span<const kernels::RowRule> rows(std::span<const TokenId> next) {
    rules_.assign(next.size(), {});
    for (std::size_t i = 0; i < next.size(); ++i) {
      rules_[i].top_logprobs = top_;
      rules_[i].given = next[i];
    }
    return rules_;
  }

  /// The tokens that rows() was given last have these.
  void commit(std::span<const kernels::TokenLogprobs> logprobs) {
    gathered_.insert(gathered_.end(), logprobs.begin(), logprobs.end());
  }

  /// What was gathered, once.
  std::vector<kernels::TokenLogprobs> take() { return std::exchange(gathered_, {}); }

 private:
  explicit PromptScores(int top) : top_(top) {}

  int top_;
  std::vector<kernels::RowRule> rules_;
  std::vector<kernels::TokenLogprobs> gathered_;
};

}  // namespace tandem::engine
