#pragma once

#include <string_view>

#include "support.h"

namespace tandem::testing {

/// How far a backend may be from the f32 reference implementation on the tiny models;
/// tests/data/goldens/README.md. Differences are bounded by their largest value (0: not bounded)
/// and their RMS over a row; tokens are equal where the two largest logits are further apart than
/// a gap.
struct Tolerance {
  float logit_max = 0;
  float logit_rms = 0;
  float hidden_max = 0;
  float hidden_rms = 0;
  float token_gap = 0;   ///< of generated and drafted tokens
  float prompt_gap = 0;  ///< of the likeliest token after each row of a prompt
};

/// Prompts have rows of random tokens, some of which are far more sensitive than generated ones:
/// cpu differs in 129 of 4,870 rows, at gaps up to 0.241 (tiny-e2-Q8_0, row 126 of p150, whose
/// logits are 0.14 RMS off) and 0.121, all others below 0.1. Generated tokens differ at gaps up to
/// 0.065. Rounded inputs of a router may choose another expert: gaps up to 0.739.
///
/// FP8 is not continuous: the last bit of an activation can move an e4m3 code and with it all later
/// rows of the prompt (spec/formats.md section 8). Only prompts of a few tokens are compared
/// closely, and only on reference, whose cache is f32. On long ones reference differs in 4 of 550
/// rows, RMS 0.155 and gap 0.455 at most; cpu RMS 0.217 and gap 0.604, with an f16 cache 0.207 and
/// 0.594 (after a prompt of one token the 19th differs at a gap of 0.112); cuda, whose inputs pass
/// through fp16, gap 0.542 in a prompt of 7 tokens.
inline Tolerance tiny_tolerance(std::string_view backend, Weights weights,
                                std::size_t prompt_size) {
  constexpr std::size_t kFewTokens = 8;
  const bool is_reference = backend == "reference";
  if (weights == Weights::kFp8 && (prompt_size > kFewTokens || !is_reference)) {
    return {0, 0.25F, 0, 0.25F, 0.65F, 0.65F};
  }
  if (is_reference && weights == Weights::kFp8) return {1e-3F, 1e-3F, 1e-3F, 1e-3F, 1e-2F, 1e-2F};
  if (is_reference) return {1e-4F, 1e-4F, 1e-4F, 1e-4F, 1e-3F, 1e-3F};
  if (weights == Weights::kPlain) return {0, 0.05F, 0, 0.05F, 0.02F, 0.02F};  // f16 KV
  if (weights == Weights::kExperts) return {0, 0.2F, 0, 0.2F, 0.75F, 0.75F};
  return {0, 0.2F, 0, 0.2F, 0.1F, 0.3F};
}

/// The demo pair, Q4_K_M.
struct DemoTolerance {
  double nll = 0;              ///< difference of the mean NLL
  double log_probability = 0;  ///< mean absolute difference of the greedy token's
  float token_gap = 0;
};

/// The recorded values have four decimals.
inline DemoTolerance demo_tolerance(std::string_view backend) {
  if (backend == "reference") return {1e-4, 1e-4, 1e-3F};
  return {0.01, 0.05, 0.5F};
}

/// The same with an int8 cache. Mean NLL: reference +0.0003, cpu +0.00003; log-probabilities:
/// 0.0039 and 0.0084.
inline DemoTolerance int8_tolerance() {
  return {0.005, 0.02, 0.5F};
}

/// Acceptance per draft position, k = 4, greedy.
inline constexpr double kAcceptanceTolerance = 0.03;

}  // namespace tandem::testing
