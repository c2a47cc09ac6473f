#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/engine/acceptance.h"
#include "tandem/engine/prefix_cache.h"

namespace tandem::engine {

enum class SequenceState : std::uint8_t {
  kWaiting,  ///< holds neither slot nor pages: new, or preempted
  kPrefill,  ///< `tokens` are being computed as prompt rows
  kDecode,   ///< the slot holds the last token as its next input
};

/// Pages of one kind by position / page_tokens. Entries before `first` are kNoPage: they were
/// given back because no future row can see them.
struct PageTable {
  std::vector<PageId> pages;
  int first = 0;
};

/// A text being computed: three lengths (prompt <= tokens, computed < tokens) and who holds what.
/// KV of positions [0, computed) is valid; everything beyond (rejected drafts) is overwritten
/// before it is read, so that a rollback is a length that does not grow. Plain data; the scheduler
/// moves it between states. Thread: engine.
struct Sequence {
  std::uint64_t request_id = 0;
  std::uint64_t age = 0;        ///< order of arrival; smaller is older
  std::vector<TokenId> tokens;  ///< prompt, then output
  int num_prompt = 0;
  int max_length = 0;  ///< tokens at which the output is full
  SequenceState state = SequenceState::kWaiting;
  int computed = 0;
  int score_end = 0;   ///< positions [0, score_end) are to be scored: all but the prompt's last one
  int num_scored = 0;  ///< positions [0, num_scored) were scored
  int slot = -1;
  int held_drafts = 0;  ///< drafts that the slot holds and that may be verified
  std::array<TokenId, kMaxDraft> drafts = {};  ///< the first held_drafts ones
  std::optional<int> draft_length;             ///< fixed by request or server
  AcceptanceHistory acceptance;
  bool is_started = false;   ///< has had rows since it got its slot
  bool was_started = false;  ///< has ever had rows
  int known_prefix = 0;      ///< leading tokens that the cache knew when the slot was given
  int cached_prompt = 0;     ///< prompt tokens that its first rows found in the prefix cache

  std::array<PageTable, kernels::kNumAttentionKinds> tables;
  std::vector<PageKey> page_keys;  ///< chain keys of the first full pages of `tokens`
  int indexed_pages = 0;           ///< leading pages that the prefix cache knows

  int length() const { return static_cast<int>(tokens.size()); }
  bool is_full() const { return length() >= max_length; }
  bool is_scoring() const { return num_scored < score_end; }
  /// Positions that may be taken from the prefix cache: rows to be scored, and the last one, may
  /// not.
  int reusable_length() const { return is_scoring() ? num_scored : length() - 1; }
  /// Whether the row at `computed` is to be scored.
  bool scores_next() const { return is_scoring() && computed >= num_scored; }
  /// Drafts worth verifying in the next span: it yields one token more than it accepts.
  int useful_drafts() const { return max_length - length() - 1; }

  /// A prompt chunk of `rows` tokens was computed.
  void commit_prompt(int rows);
  /// `chosen` tokens follow; the KV of everything before the last one is valid.
  void commit_tokens(std::span<const TokenId> chosen);

  /// kInternal names the length or table that breaks its invariant. window: W.
  core::Status check(int page_tokens, int window) const;
};

}  // namespace tandem::engine
