#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/kernels/step.h"

namespace tandem::kernels {

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key);

/// Uniform number in [0, 1) with 53 random bits from a counter-based generator (Philox 4x32-10,
/// key = seed, counter = position): equal everywhere, no state.
double uniform(std::uint64_t seed, Position position);

/// Index of the largest value, the lowest index on ties. NaN never wins; 0 if nothing is larger
/// than -inf.
TokenId argmax(std::span<const float> logits);

/// Scratch of sample(), reused from call to call. Thread: one caller at a time.
struct SamplingScratch {
  std::vector<TokenId> ids;          ///< candidates in order
  std::vector<float> weights;        ///< exp((logit - max) / temperature) of ids
  std::vector<float> block_maxima;   ///< of blocks of the row, to find a threshold without a sort
  std::vector<float> ranked_maxima;  ///< the same, partly sorted
  std::vector<float> unchanged;      ///< logits of a rule's tokens before their change
};

/// Chooses a token from softcapped logits [V] (-inf: never) for the token at `position`:
/// greedy for temperature 0 or top_k 1, else inverse-CDF sampling over the warped law (temperature,
/// top-k, top-p: the smallest set of most likely tokens whose sum reaches top_p, min-p: drop tokens
/// below min_p times the likeliest).
///
/// Candidates are ordered by (logit descending, id ascending), and every warper keeps a prefix of
/// that order: of tokens that tie at the edge of the set, those of lower ids stay. top-p counts
/// the law that top-k left, renormalized. Weights are f32, their sums f64 in a fixed order, with an
/// exp of our own, so the result is a pure function of the arguments, equal on every machine. Costs
/// two or three passes over the row; only the part of the order that decides is sorted.
TokenId sample(std::span<const float> logits, const SamplingParams& params, Position position,
               SamplingScratch& scratch);

/// Chooses as sample() does from logits that a rule has changed, or the token that the rule gives.
/// `logits` is scratch afterwards.
/// `logprobs` is filled if the rule asks for it, from the logits as they came in: ln of the
/// softmax, summed in f64 in a fixed order. Costs the length of the rule's changes, and a pass over
/// the row each for a mask and for logprobs.
TokenId sample(std::span<float> logits, const SamplingParams& params, const RowRule& rule,
               Position position, SamplingScratch& scratch, TokenLogprobs& logprobs);

}  // namespace tandem::kernels
