#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/kernels/step.h"

namespace tandem::kernels {

/// Index of the largest value, the lowest index on ties. NaN never wins; 0 if nothing is larger
/// than -inf.
TokenId argmax(std::span<const float> logits);

/// Scratch of sample(), reused from call to call. Thread: one caller at a time.
struct SamplingScratch {
  std::vector<TokenId> ids;                 ///< candidates in order
  std::vector<float> block_maxima;          ///< of blocks of the row, to find a threshold unsorted
  std::vector<float> ranked_maxima;         ///< the same, partly sorted
  std::vector<std::uint64_t> block_masses;  ///< of the kept tokens
  std::vector<float> unchanged;             ///< logits of a rule's tokens before their change
};

/// Chooses a token from softcapped logits [V] (-inf: never) for the token at `position`:
/// greedy for temperature 0 or top_k 1, else by the warped law (temperature, top-k, top-p: the
/// smallest set of most likely tokens whose sum reaches top_p, min-p: drop tokens below min_p times
/// the likeliest).
///
/// Candidates are ordered by (logit descending, id ascending), and top-k and top-p keep a prefix of
/// that order: of tokens that tie at the edge of the set, those of lower ids stay. top-p counts the
/// law that top-k left, renormalized. The token is the first, by id, at which the running sum of
/// the kept tokens' masses exceeds the random share of their sum. Masses are integers
/// (sampling_math.h), so the result is a pure function of the arguments, equal on every machine and
/// device. Costs two or three passes over the row; only the part of the order that decides is
/// sorted.
TokenId sample(std::span<const float> logits, const SamplingParams& params, Position position,
               SamplingScratch& scratch);

/// Chooses as sample() does from logits that a rule has changed, or the token that the rule gives.
/// `logits` is scratch afterwards.
/// `logprobs` is filled if the rule asks for it, from the logits as they came in: ln of the
/// softmax, summed in f64 in a fixed order. Costs the length of the rule's changes, and a pass over
/// the row each for a mask, for logprobs, and for the rank of a given token.
TokenId sample(std::span<float> logits, const SamplingParams& params, const RowRule& rule,
               Position position, SamplingScratch& scratch, TokenLogprobs& logprobs);

}  // namespace tandem::kernels
