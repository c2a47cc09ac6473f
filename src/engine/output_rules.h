#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/engine/request.h"
#include "tandem/grammar/matcher.h"
#include "tandem/kernels/step.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::engine {

/// The grammar, thought budget, penalties, bias and min_tokens of one request and its wish for
/// logprobs, as rules for the rows of its spans. A row's rule follows from the tokens emitted so
/// far and the drafts before the row alone, so that drafts change nothing. Thread: engine.
class OutputRules {
 public:
  /// Null if the request asks for nothing of that kind: it pays nothing. Reads its prompt.
  static std::unique_ptr<OutputRules> make(const Request& request,
                                           const tokenizer::Tokenizer& tokenizer);

  /// How many of the drafts are worth verifying: the grammar refuses the next one, or ends there.
  int count_useful(std::span<const TokenId> drafts);

  /// Rules of the rows that choose the token after what was committed and the first 0, 1, ...,
  /// drafts.size() drafts, all of which must be useful. Valid until the next call.
  std::span<const kernels::RowRule> rows(std::span<const TokenId> drafts,
                                         grammar::TrieWalker& walker);

  /// The output went on by these tokens.
  void commit(std::span<const TokenId> tokens);

  /// Not ok once the grammar could not be kept, see Matcher::fill_mask: the request must end.
  const core::Status& status() const { return status_; }

 private:
  static constexpr int kNoThought = -1;

  OutputRules(const Request& request, std::span<const TokenId> ends, int vocab_size);

  /// What is known of a token that has an effect or may get one.
  struct Entry {
    bool occurred = false;  // in prompt or output
    bool is_end = false;
    int count = 0;  // in the output
    float bias = 0.0F;

    bool operator==(const Entry&) const = default;
  };

  void count(TokenId token, int by);
  /// Tokens of the open thought after one more token; kNoThought: none is open.
  int thought_after(int thought_tokens, TokenId token) const;
  /// Whether an open thought of so many tokens is to be closed, and ahead_ allows it.
  bool must_close(int thought_tokens) const;
  std::span<const std::uint32_t> close_mask(std::size_t row);
  /// The mask of ahead_; empty: none.
  std::span<const std::uint32_t> grammar_mask(std::size_t row, grammar::TrieWalker& walker);
  void fill(bool may_end, std::vector<kernels::LogitChange>& changes) const;

  Penalties penalties_;
  int min_tokens_;
  std::optional<int> top_logprobs_;
  int output_length_ = 0;
  std::unordered_map<TokenId, Entry> entries_;
  std::optional<grammar::Matcher> matcher_;  // of what was committed
  std::optional<grammar::Matcher> ahead_;    // the same and drafts
  std::size_t mask_words_;
  std::optional<ThoughtBudget> thought_budget_;
  int thought_tokens_ = kNoThought;
  core::Status status_;
  std::array<std::vector<kernels::LogitChange>, kMaxDraft + 1> changes_;  // by row
  std::array<std::vector<std::uint32_t>, kMaxDraft + 1> masks_;
  std::vector<kernels::RowRule> rules_;
};

}  // namespace tandem::engine
