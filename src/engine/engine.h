#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/engine/measure_steps.h"
#include "tandem/engine/request.h"
#include "tandem/model/step_runner.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::engine {

/// Of KV memory that is taken page by page, one in so many bytes may hold pages without a user.
inline constexpr std::size_t kPrefixCacheShare = 32;

struct EngineOptions {
  int draft_length = -1;    ///< -1: adaptive; 0..kMaxDraft: fixed
  int max_queue = 256;      ///< waiting requests; more are refused
  int max_context = 65536;  ///< prompt + output of one request
  int prefill_chunk = 512;  ///< most prompt rows of a step
  bool prefix_cache = true;
  /// Pages kept without a user; 0: a share, or all of the memory where it is reserved anyway.
  std::size_t prefix_cache_bytes = 0;
  /// Of this model on this machine (measure_steps()), for the adaptive draft length to start from.
  std::vector<StepMeasurement> step_costs = {};
};

/// Bounds of a histogram of steps by their tokens: prompt rows and tokens generated.
inline constexpr std::array<int, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};

/// Counters since start, gauges of now, and what the KV memory is; see /metrics.
struct EngineStats {
  std::uint64_t requests_finished = 0, requests_failed = 0, requests_cancelled = 0;
  std::uint64_t requests_rejected = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::uint64_t steps = 0, preemptions = 0;
  std::uint64_t step_tokens = 0;  ///< prompt rows and tokens generated, of all steps
  /// Steps of at most so many tokens, but more than the bound before; the last one: of more.
  std::array<std::uint64_t, kStepTokenBounds.size() + 1> steps_by_tokens = {};
  std::uint64_t verify_steps = 0;  ///< per sequence: spans verified, with or without drafts
  std::uint64_t draft_rounds = 0;  ///< spans verified with at least one draft
  std::array<std::uint64_t, kMaxDraft> drafted_at = {};   ///< by position: times drafted
  std::array<std::uint64_t, kMaxDraft> accepted_at = {};  ///< by position: times accepted
  double busy_seconds = 0;
  int running = 0, waiting = 0;
  std::size_t kv_bytes_used = 0;    ///< pages held by running sequences
  std::size_t kv_bytes_cached = 0;  ///< pages kept for reuse only
  std::size_t kv_bytes_total = 0;
  int kv_page_tokens = 0;
  int kv_capacity_tokens = 0;  ///< of one text that has the KV memory for itself
  bool prefix_cache = false;
  bool healthy = true;  ///< false after a device fault
};

/// Requests to tokens: continuous batching, chunked prefill, paged KV with prefix reuse,
/// preemption, drafting, stop conditions. Owns its thread from start() to destruction.
/// Thread: submit, cancel, drain, stats from any thread.
class Engine {
 public:
  /// `runner` and `tokenizer` must outlive the engine.
  static core::Result<std::unique_ptr<Engine>> create(model::StepRunner& runner,
                                                      const tokenizer::Tokenizer& tokenizer,
                                                      const EngineOptions& options);
  virtual ~Engine() = default;

  /// Queues a request. kInvalidArgument (empty prompt, unknown token, longer than the context),
  /// kResourceExhausted (queue full), kUnavailable (draining or failed). On any failure the sink
  /// is never called.
  virtual core::Status submit(Request request, EventSink sink) = 0;

  /// Ends a request within one step; its sink gets a last event with kCancelled. Unknown ids are
  /// ignored: the request may just have finished.
  virtual void cancel(std::uint64_t id) = 0;

  /// Refuses new requests from now on. Running and queued ones go on.
  virtual void begin_drain() = 0;
  /// True when nothing runs or waits.
  virtual bool idle() const = 0;

  /// Most tokens of a prompt and its answer: what was asked for, as far as the model and the KV
  /// memory hold it.
  virtual int context() const = 0;

  virtual EngineStats stats() const = 0;
};

}  // namespace tandem::engine
