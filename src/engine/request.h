#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/step.h"

namespace tandem::engine {

/// A tokenized generation request. Plain data; crosses from the I/O side to the engine thread.
struct Request {
  std::uint64_t id = 0;  ///< unique while the request lives; chosen by the caller
  std::vector<TokenId> prompt;
  kernels::SamplingParams sampling;
  int max_tokens = 0;             ///< 0: as many as the context holds
  std::vector<std::string> stop;  ///< output ends before the first of these
  bool ignore_eos = false;
  std::optional<int> draft_length;  ///< fixed K for this request, 0: no drafts; none: the server's
};

enum class FinishReason : std::uint8_t {
  kStop,    ///< end token or stop string
  kLength,  ///< max_tokens or the context is full
  kCancelled,
  kError,  ///< see Event::error
};

/// Token counts of a request so far; the numbers that `usage` reports.
struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;      ///< prompt tokens taken from the prefix cache
  int completion_tokens = 0;  ///< tokens chosen by the target, an end token included
  int drafted_tokens = 0;     ///< drafts verified
  int accepted_tokens = 0;    ///< drafts accepted
};

/// Progress of a request. Text never cuts a character and never contains part of a stop string.
struct Event {
  std::uint64_t request_id = 0;
  std::string text;                    ///< new text, may be empty
  std::vector<TokenId> tokens;         ///< tokens chosen in this step
  std::optional<FinishReason> finish;  ///< set on the last event, exactly once
  core::Status error;                  ///< with kError
  Usage usage;
};

/// Called on the engine thread for every event of one request, in order; must return quickly and
/// not throw. Dropped after the last event.
using EventSink = std::function<void(const Event&)>;

}  // namespace tandem::engine
