#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/engine/request.h"
#include "tandem/server/body_reader.h"
#include "tandem/server/output_format.h"

namespace tandem::server {

/// Most choices of one answer: prompts times n.
inline constexpr int kMaxChoices = 128;

/// The members that the generating endpoints share.
struct GenerationParams {
  std::string model;  ///< empty: the one served
  kernels::SamplingParams sampling;
  std::optional<std::uint64_t> seed;  ///< none: a random one
  engine::Penalties penalties;
  std::vector<engine::LogitBias> logit_bias;
  int n = 1;                      ///< answers per prompt
  std::optional<int> max_tokens;  ///< none: as many as the context holds
  int min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;
  bool ignore_eos = false;
  std::optional<int> draft_length;
  std::optional<int> logprobs;         ///< report logprobs and those of this many likeliest tokens
  std::optional<int> prompt_logprobs;  ///< the same of the prompt's tokens, in vLLM's form
  std::optional<int> thought_budget;   ///< of chats: most tokens of a thought; none: no bound
  std::optional<OutputFormat> format;  ///< none: any text
  bool stream = false;
  bool include_usage = false;     ///< stream_options.include_usage
  bool continuous_usage = false;  ///< stream_options.continuous_usage_stats
};

/// Reads the shared members; what is wrong is in the reader's error. `defaults` fills in the
/// sampling members that the body lacks.
/// `least_tokens`: the smallest max_tokens.
GenerationParams read_params(BodyReader& reader, const kernels::SamplingParams& defaults,
                             int least_tokens = 1);

/// Reads vLLM's `prompt_logprobs`; after read_params().
void read_prompt_logprobs(BodyReader& reader, GenerationParams& params);

/// A JSON array of token ids; nothing where an element is none. The vocabulary is not looked at.
std::optional<std::vector<TokenId>> token_ids(const boost::json::array& array);

}  // namespace tandem::server
