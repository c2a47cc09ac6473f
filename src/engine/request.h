#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/step.h"

namespace tandem::grammar {
class Grammar;
}

namespace tandem::engine {

/// Changes of a token's logit by what was said before, as OpenAI and vLLM define them. Counted over
/// the output for presence and frequency, over prompt and output for repetition.
struct Penalties {
  float presence = 0.0F;   ///< subtracted once from a token that occurred; -2 to 2
  float frequency = 0.0F;  ///< subtracted per occurrence; -2 to 2
  /// Divides a positive logit of a token that occurred, multiplies others.
  float repetition = 1.0F;

  bool any() const { return presence != 0.0F || frequency != 0.0F || repetition != 1.0F; }
};

/// Added to a token's logit, -100 to 100.
struct LogitBias {
  TokenId token = 0;
  float bias = 0.0F;
};

/// A thought is what stands between these two tokens; `close` is forced where it has max_tokens.
struct ThoughtBudget {
  TokenId open = 0;
  TokenId close = 0;
  int max_tokens = 0;
};

inline constexpr std::size_t kMaxLogitBiases = 1024;
inline constexpr std::size_t kMaxStopTokens = 64;

/// A tokenized generation request. Plain data; crosses from the I/O side to the engine thread.
/// Whatever is set, drafts change nothing: neither the text nor a logprob. Logits are changed in
/// this order: repetition, frequency and presence, bias, min_tokens, grammar and thought budget;
/// then temperature and what follows it in SamplingParams. Several choices (`n`) are several
/// requests, which share their prompt's pages.
struct Request {
  std::uint64_t id = 0;  ///< unique while the request lives; chosen by the caller
  std::vector<TokenId> prompt;
  kernels::SamplingParams sampling;
  Penalties penalties;
  std::vector<LogitBias> logit_bias;  ///< at most kMaxLogitBiases; those of one token add up
  int max_tokens = 0;                 ///< 0: as many as the context holds
  bool is_prompt_only = false;        ///< ends with kLength where its first token would come
  /// No end token, and none of stop_tokens, before this many tokens, unless the grammar allows
  /// nothing else; stop strings still end the output.
  int min_tokens = 0;
  std::vector<std::string> stop;     ///< output ends before the first of these
  std::vector<TokenId> stop_tokens;  ///< ends like an end token; at most kMaxStopTokens
  bool ignore_eos = false;           ///< the vocabulary's end tokens do not end the output
  std::optional<int> draft_length;   ///< fixed K for this request, 0: no drafts; none: the server's
  /// Bounds every thought of the output; one that the prompt has opened counts from the output's
  /// first token. A grammar that does not allow `close` goes first.
  std::optional<ThoughtBudget> thought_budget;
  /// Reports every token's logprob and those of this many likeliest ones, 0 to
  /// kernels::kMaxTopLogprobs.
  std::optional<int> logprobs;
  /// The same of the prompt's tokens from the second on. Every row of such a prompt is computed,
  /// whatever the prefix cache knows, and scored in as many steps as the kept rows need.
  std::optional<int> prompt_logprobs;
  /// The output is a text of this grammar (grammar::Compiler makes one), cut short only by
  /// max_tokens, a stop string, a stop token or a deadline; an end token comes where the grammar
  /// allows an end. Not with ignore_eos. The request ends with kError and kResourceExhausted where
  /// the grammar is too ambiguous to go on. Null: any text. Shared with the compiler's cache and
  /// other requests.
  std::shared_ptr<const grammar::Grammar> grammar;
  /// The request is ended in the first step after this time, waiting or running, with kError and
  /// code kCancelled; tokens sent before stay valid.
  std::optional<std::chrono::steady_clock::time_point> deadline;
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
  double queued_seconds = 0;  ///< from the queue to the first step
};

/// Progress of a request. Text never cuts a character and never contains part of a stop string.
struct Event {
  std::uint64_t request_id = 0;
  std::string text;                              ///< new text, may be empty
  std::vector<TokenId> tokens;                   ///< tokens chosen in this step
  std::vector<kernels::TokenLogprobs> logprobs;  ///< of `tokens`, one each, if asked for
  /// With the first tokens: of the prompt's tokens from the second on, one each, if asked for.
  std::vector<kernels::TokenLogprobs> prompt_logprobs;
  std::optional<FinishReason> finish;  ///< set on the last event, exactly once
  core::Status error;                  ///< with kError
  Usage usage;
};

/// Called on the engine thread for every event of one request, in order; must return quickly and
/// not throw. Dropped after the last event.
using EventSink = std::function<void(const Event&)>;

}  // namespace tandem::engine
