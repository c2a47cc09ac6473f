#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tandem/core/units.h"

namespace tandem::kernels {

/// The two kinds of attention layers, and so of KV pages.
enum class AttentionKind : std::uint8_t { kSliding = 0, kFull = 1 };
inline constexpr int kNumAttentionKinds = 2;
inline constexpr std::array<AttentionKind, kNumAttentionKinds> kAttentionKinds = {
    AttentionKind::kSliding, AttentionKind::kFull};

/// Of what is kept by kind.
constexpr std::size_t index_of(AttentionKind kind) {
  return static_cast<std::size_t>(kind);
}

/// How a token is chosen from a row of logits. temperature 0 means greedy. Order of the warpers:
/// temperature, top-k, top-p, min-p. The random number of a token depends on (seed, its position)
/// alone, so that drafts, batching and preemption never change a sampled text.
struct SamplingParams {
  float temperature = 1.0F;
  std::int32_t top_k = 0;  ///< 0: off
  float top_p = 1.0F;      ///< 1: off
  float min_p = 0.0F;      ///< 0: off
  std::uint64_t seed = 0;
};

/// How likely a token was in its place: ln of the softmax of the softcapped logits, before
/// temperature, penalties, bias and masks. So it does not depend on how the token was chosen.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;
};

/// Most alternatives that are reported per token.
inline constexpr int kMaxTopLogprobs = 20;

/// A token's own logprob and the n likeliest ones in its place: likeliest first, lower ids first
/// among equals. The token itself need not be among them.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
  std::int32_t rank = 0;  ///< of a token that was given: its place in that order, from 1
};

/// A change of one token's logit x before the choice: (x > 0 ? x / divisor : x * divisor) + addend.
struct LogitChange {
  TokenId token = 0;
  float divisor = 1.0F;
  float addend = 0.0F;  ///< -inf: never
};

/// What a row's token is chosen under beside its slot's SamplingParams. Rules are of a position:
/// the caller, which knows the drafts (SpanResult::next_drafts), makes one for every sampled row.
struct RowRule {
  std::span<const LogitChange> changes;  ///< a token once
  /// [ceil(V / 32)], applied last; bit id % 32 of word id / 32: the token may be chosen. Empty: all
  /// may. At least one must.
  std::span<const std::uint32_t> mask;
  std::optional<int> top_logprobs;  ///< TokenLogprobs with so many of the likeliest; none: none
  std::optional<TokenId> given;     ///< the token is this one, whatever the law
};

/// Which rows of a prompt span get a final hidden state. Rows that are not kept leave the forward
/// pass after they have written their last K and V.
enum class Keep : std::uint8_t {
  kNone,  ///< a prompt chunk that is not the last one
  kLast,  ///< the last prompt row: its token is sampled
  kAll,   ///< every row, none sampled: the text that follows is given and may be scored
};

/// One sequence's part of a step. Either a prompt chunk (`prompt` not empty) or a decode span of
/// 1 + `num_drafts` rows: the slot's next token and the drafts that the slot holds.
/// A decode span is always kept and verified; plain decode is num_drafts = 0.
struct Span {
  std::int32_t slot = 0;
  std::span<const TokenId> prompt;
  Position first_position = 0;  ///< of prompt[0]; decode spans start at the slot's position
  Keep keep = Keep::kNone;      ///< prompt spans only
  std::int32_t num_drafts = 0;  ///< decode spans: rows to verify, <= drafts held by the slot
  /// Drafts to make for the next step once this span's token is known; 0: none. Ignored for spans
  /// that sample nothing.
  std::int32_t next_drafts = 0;
  /// Page tables, indexed by position / page_tokens; entries before the sliding window may be
  /// kNoPage. They must cover every position of the span. Indexed by AttentionKind.
  std::array<std::span<const PageId>, kNumAttentionKinds> pages;
  /// Rules of the rows that sample, one each in row order, or none. Read until end_step(). Those of
  /// a kAll span, one for every row, give the token that follows it: the span is scored, which
  /// yields logprobs and leaves no token in the slot.
  std::span<const RowRule> rules;

  bool is_decode() const { return prompt.empty(); }
  /// Whether the model chooses tokens here.
  bool samples() const { return is_decode() || keep == Keep::kLast; }
};

/// A step: any mix of prompt chunks, plain decode and verification, one span per slot at most.
struct StepPlan {
  std::vector<Span> spans;
};

/// What a span yielded: for decode spans the accepted drafts and the token after them; for a kLast
/// prompt span one token; otherwise nothing. tokens[num_tokens - 1] is the slot's next input token.
struct SpanResult {
  std::int32_t slot = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_drafted = 0;  ///< drafts that were verified; accepted = num_tokens - 1
  std::array<TokenId, kMaxDraft + 1> tokens = {};
  std::int32_t num_next_drafts = 0;  ///< drafts that the slot holds now
  std::array<TokenId, kMaxDraft> next_drafts = {};
  /// Of `tokens`, one each, where rules ask for it; of a scored span the given tokens.
  std::vector<TokenLogprobs> logprobs;
  /// A row of the span met a value that is not finite or that the cache cannot hold: all else here
  /// means nothing and the sequence cannot go on.
  bool is_broken = false;
};

/// Results in the order of the plan's spans.
struct StepResult {
  std::vector<SpanResult> spans;
  /// The step also prepared steps of its shape, as the first two of a shape may: its time says
  /// nothing about theirs.
  bool is_first_of_shape = false;
};

}  // namespace tandem::kernels
