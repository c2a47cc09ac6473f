#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tandem/engine/engine.h"

namespace tandem::server {

/// What /metrics shows: latencies observed here, the engine's own counters and the process's, in
/// Prometheus text form. Names that begin with vllm: are those that dashboards for vLLM read, with
/// the same meaning; tandem: are ours. Thread: any.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  using Duration = std::chrono::steady_clock::duration;
  /// From the request's arrival to its first token.
  void observe_first_token(Duration elapsed);
  /// `num_tokens` came `elapsed` after the ones before: each counts elapsed / num_tokens.
  void observe_next_tokens(Duration elapsed, int num_tokens);
  /// When things happened to a choice, from the request's arrival on.
  struct Times {
    Duration first_step{};
    std::optional<Duration> first_token, last_token;
    Duration end{};
  };
  /// A choice ended; `reason` is stop, length, abort or error.
  void observe_end(std::string_view reason, const Times& times, const engine::Usage& usage);
  /// All `n` choices of a request are complete. max_tokens: that each might have; most_tokens: that
  /// one of them has.
  void observe_request(int n, int max_tokens, int most_tokens);
  void count_response(int http_status);

  /// `stats` is null while no engine is attached.
  std::string text(const engine::EngineStats* stats) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::server
