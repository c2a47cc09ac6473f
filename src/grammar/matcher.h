#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tandem/core/status.h"
#include "tandem/grammar/grammar.h"

namespace tandem::grammar {

/// Where in a grammar one text is, token by token. A value: a copy looks ahead, over drafts, and
/// is thrown away; that is all that a rollback takes. Thread: one.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  /// Goes on by a token. False if it may not come here: nothing changes. After an end token only
  /// nothing may come.
  bool accept(TokenId token);
  /// Whether the text may end here.
  bool can_end() const { return !is_finished_ && now_.is_complete; }
  bool is_finished() const { return is_finished_; }

  /// Writes which tokens may come next: bit id % 32 of word id / 32, Grammar::mask_words() words.
  /// End tokens may where the text may end. At least one bit is set after success. Exact, but at
  /// the Pushdown's limits: there accept() may refuse a token whose bit is set. kResourceExhausted:
  /// the grammar is so ambiguous or deep here that it allows nothing in bounded work. About 10
  /// microseconds, more the first time that a grammar is in a state.
  core::Status fill_mask(std::span<std::uint32_t> mask, TrieWalker& walker);

  /// Whether nothing but the end may come.
  bool must_end() const { return can_end() && now_.threads.empty(); }

 private:
  core::Status add_thread(const Thread& thread, std::span<std::uint32_t> mask, TrieWalker& walker,
                          std::uint64_t& work_left);

  std::shared_ptr<const Grammar> grammar_;  // shared with the compiler's cache and other texts
  Pushdown pushdown_;
  Configuration now_;
  Configuration next_, other_;  // scratch
  bool is_finished_ = false;
};

}  // namespace tandem::grammar
