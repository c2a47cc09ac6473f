#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/kernels/step.h"

namespace tandem::kernels {

/// Uniform number in [0, 1) with 53 random bits from a counter-based generator (Philox 4x32-10,
/// key = seed, counter = position): equal everywhere, no state.
double uniform(std::uint64_t seed, Position position);

/// Index of the largest value, the lowest index on ties.
TokenId argmax(std::span<const float> logits);

/// Scratch of sample(), reused from call to call.
struct SamplingScratch {
  std::vector<TokenId> ids;
  std::vector<float> probabilities;
};

/// Chooses a token from softcapped logits [V] (-inf: never) for the token at `position`:
/// greedy for temperature 0, else inverse-CDF sampling over the warped law (temperature, top-k,
/// top-p: the smallest set of most likely tokens whose sum reaches top_p, min-p: drop tokens below
/// min_p times the likeliest). Candidates are ordered by (logit descending, id ascending), so the
/// result is a pure function of the arguments.
TokenId sample(std::span<const float> logits, const SamplingParams& params, Position position,
               SamplingScratch& scratch);

}  // namespace tandem::kernels
