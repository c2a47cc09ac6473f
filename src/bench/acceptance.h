#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tandem/bench/prometheus_text.h"

namespace tandem::bench {

/// How well drafts did in a run. mean_length = 1 + accepted / verify steps; position i's rate =
/// accepted at i / steps in which i was drafted.
struct Acceptance {
  double mean_length = 1.0;
  std::vector<double> per_position;  ///< empty: not known, or nothing was drafted
  std::string source;                ///< "metrics" or "timings"
  std::uint64_t drafted_tokens = 0, accepted_tokens = 0;
  std::uint64_t verify_steps = 0;  ///< the denominator of mean_length
  std::uint64_t draft_rounds = 0;  ///< steps with at least one draft; 0: not known
};

/// A server's counters of drafts at one moment, read from its /metrics page under the names of
/// vLLM (`vllm:spec_decode_num_...`), llama.cpp (the same with `llamacpp:`) and Tandem.
struct DraftCounters {
  double rounds = 0.0, drafted = 0.0, accepted = 0.0;
  std::optional<double> verify_steps;  ///< Tandem only; includes steps without drafts
  std::vector<double> accepted_at;     ///< by position
  std::vector<double> drafted_at;      ///< by position; empty: as many as rounds at each

  /// Nothing when the page has no such counters.
  static std::optional<DraftCounters> read(const PrometheusText& page);
};

/// From the counters before and after a run; nothing when no step was verified in between or the
/// counters went back (the server was restarted).
std::optional<Acceptance> acceptance_between(const DraftCounters& before,
                                             const DraftCounters& after);

/// From llama.cpp's per-request counters: each verify step yields one token more than it accepts,
/// and the first token of a request comes from its prompt. Nothing when nothing was drafted.
std::optional<Acceptance> acceptance_from_timings(std::uint64_t drafted, std::uint64_t accepted,
                                                  std::uint64_t tokens_after_first);

}  // namespace tandem::bench
