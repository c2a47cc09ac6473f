#pragma once

#include <string_view>

namespace tandem::testing {

/// How far a backend may be from the f32 reference implementation on the tiny models;
/// tests/data/goldens/README.md.
struct Tolerance {
  float logit_max = 0;   ///< largest difference of a logit, 0: not bounded
  float logit_rms = 0;   ///< RMS of the difference over a row
  float hidden_max = 0;  ///< largest difference of a hidden state, 0: not bounded
  float hidden_rms = 0;  ///< RMS of the difference over a hidden state
  float token_gap = 0;   ///< tokens are equal where the two largest logits are further apart
};

/// `rounds_activations`: the file has quantized weights, which cpu multiplies with int8 codes.
inline Tolerance tiny_tolerance(std::string_view backend, bool rounds_activations) {
  if (backend == "reference") return {1e-4F, 1e-4F, 1e-4F, 1e-4F, 1e-3F};
  if (!rounds_activations) return {0, 0.05F, 0, 0.05F, 0.02F};  // f16 KV
  return {0, 0.2F, 0, 0.2F, 0.1F};
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

/// Acceptance per draft position, k = 4, greedy.
inline constexpr double kAcceptanceTolerance = 0.03;

}  // namespace tandem::testing
