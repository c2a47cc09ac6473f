#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/engine/request.h"
#include "tandem/kernels/step.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::engine {

/// The penalties, bias and min_tokens of one request and its wish for logprobs, as rules for the
/// rows of its spans. A row's rule follows from the tokens emitted so far and the drafts before the
/// row alone, so that drafts change nothing. Thread: engine.
class OutputRules {
 public:
  /// Null if the request asks for nothing of that kind: it pays nothing. Reads its prompt.
  static std::unique_ptr<OutputRules> make(const Request& request,
                                           const tokenizer::Tokenizer& tokenizer);

  /// Rules of the rows that choose the token after what was committed and the first 0, 1, ...,
  /// drafts.size() drafts. Valid until the next call.
  std::span<const kernels::RowRule> rows(std::span<const TokenId> drafts);

  /// The output went on by these tokens.
  void commit(std::span<const TokenId> tokens);

 private:
  OutputRules(const Request& request, std::span<const TokenId> ends);

  /// What is known of a token that has an effect or may get one.
  struct Entry {
    bool occurred = false;  // in prompt or output
    bool is_end = false;
    int count = 0;  // in the output
    float bias = 0.0F;

    bool operator==(const Entry&) const = default;
  };

  void count(TokenId token, int by);
  void fill(int output_length, std::vector<kernels::LogitChange>& changes) const;

  Penalties penalties_;
  int min_tokens_;
  std::optional<int> top_logprobs_;
  int output_length_ = 0;
  std::unordered_map<TokenId, Entry> entries_;
  std::array<std::vector<kernels::LogitChange>, kMaxDraft + 1> changes_;  // by row
  std::vector<kernels::RowRule> rules_;
};

}  // namespace tandem::engine
