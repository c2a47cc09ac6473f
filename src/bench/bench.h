#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tandem/bench/acceptance.h"
#include "tandem/bench/statistics.h"
#include "tandem/core/status.h"

namespace tandem::bench {

/// What to ask of which server.
struct BenchOptions {
  std::string url;         ///< http://host:port; a path before /v1 is kept, a final /v1 is optional
  std::string dataset;     ///< ShareGPT V3 JSON file
  std::string model;       ///< empty: the first of the server's /v1/models
  std::string api_key;     ///< empty: none
  std::string extra_body;  ///< JSON object whose members every request's body gets; empty: none
  int prompts = 1000;      ///< requests at most; no more than the data set holds are sent
  int concurrency = 32;
  int max_tokens = 256;
  double temperature = 0.0;
  double duration_s = 900.0;  ///< no longer than this; what runs then is cancelled
  double timeout_s = 600.0;   ///< of one request
  int pid = 0;                ///< server process whose memory is read; 0: ask /metrics
  /// Called when all questions are answered and the first request is about to be sent.
  std::function<void()> on_start = [] {
  };
  const std::atomic<bool>* interrupt = nullptr;  ///< when it turns true the run ends early
};

/// What was measured. Times are of completed requests only. A request is completed when its stream
/// ended in order and reported its usage; otherwise it is an error of one kind, or was cancelled
/// at the end of the duration: asked = completed + errors + cancelled. A slow server has more of
/// its work in cancelled requests than a fast one, so that their tokens count, too: as many as
/// completed requests had for as much text. With none completed the rates are 0 and say nothing.
struct BenchReport {
  std::string url, model;
  int asked = 0, completed = 0, cancelled = 0;
  std::map<std::string, int> errors_by_kind;          ///< "connect", "timeout", "http_503", ...
  std::map<std::string, std::string> error_examples;  ///< the first message of each kind
  std::map<std::string, int> finish_reasons;
  double wall_s = 0.0;        ///< first send to last answer (or to the end of the duration)
  bool is_cut_short = false;  ///< the time was over, or it was interrupted
  std::uint64_t prompt_tokens = 0, completion_tokens = 0;  ///< from usage
  /// Estimates for cancelled requests: of prompts whose answer had begun, and of answers.
  double cut_prompt_tokens = 0.0, cut_completion_tokens = 0.0;

  /// Aggregates: tokens, those of cancelled requests included, / wall_s.
  double prefill_tokens_per_s = 0.0, decode_tokens_per_s = 0.0;
  /// Phase rates: prompt tokens / time in which at least one request waited for its first content;
  /// tokens after the first / time in which at least one request was past its first content.
  double prefill_phase_tokens_per_s = 0.0, decode_phase_tokens_per_s = 0.0;

  std::optional<Distribution> ttft_ms;         ///< send to first content
  std::optional<Distribution> first_event_ms;  ///< send to first event of the stream
  std::optional<Distribution> tpot_ms;     ///< (L - TTFT) / (N - 1), of requests with N > 1 tokens
  std::optional<Distribution> latency_ms;  ///< L: send to the end of the answer

  std::optional<std::uint64_t> peak_memory_bytes;
  std::string peak_memory_source;  ///< "pid" or "metrics"; empty: unknown
  std::optional<Acceptance> acceptance;

  int errors() const;
};

/// Sends the data set's prompts to URL/v1/chat/completions in a closed loop and reports what came
/// back; progress goes to standard error. Fails when nothing can be measured: the data set cannot
/// be read, the server cannot be reached, no model is offered. Requests that fail are counted, not
/// fatal. Thread: blocks the caller.
core::Result<BenchReport> run_bench(const BenchOptions& options);

/// The report for people, and as a JSON object with the keys completed, asked, errors, wall_s,
/// prefill_tokens_per_s, decode_tokens_per_s, ttft_ms{mean,p50,p90,p99}, tpot_ms{...},
/// peak_memory_bytes, acceptance{mean_length,per_position[]} and more; null: not known.
std::string to_table(const BenchReport& report);
std::string to_json(const BenchReport& report);

}  // namespace tandem::bench
