#include "tandem/engine/request_check.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tandem/grammar/grammar.h"

namespace tandem::engine {
namespace {

core::Status check_prompt(const Request& request, int vocab_size, int context,
                          bool is_bound_by_kv) {
  if (request.prompt.empty()) return core::invalid_argument("the prompt has no token");
  const std::size_t answer = request.is_prompt_only ? 0 : 1;
  if (request.prompt.size() + answer > static_cast<std::size_t>(context)) {
    return core::invalid_argument(fmt::format(
        "the prompt has {} tokens{}, but the {} {} tokens; shorten the prompt or raise {}",
        request.prompt.size(), answer > 0 ? " and needs room for an answer" : "",
        is_bound_by_kv ? "KV memory holds" : "context has", context,
        is_bound_by_kv ? "--kv-memory" : "--context"));
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const TokenId token = request.prompt[i];
    if (token < 0 || token >= vocab_size) {
      return core::invalid_argument(
          fmt::format("prompt token {} at index {} is not in the vocabulary of {} entries", token,
                      i, vocab_size));
    }
  }
  return {};
}

core::Status check_sampling(const kernels::SamplingParams& p) {
  if (!std::isfinite(p.temperature) || p.temperature < 0.0F) {
    return core::invalid_argument(
        fmt::format("temperature is {}; give a number from 0", p.temperature));
  }
  if (!(p.top_p > 0.0F && p.top_p <= 1.0F)) {
    return core::invalid_argument(
        fmt::format("top_p is {}; give a number above 0 and up to 1", p.top_p));
  }
  if (!(p.min_p >= 0.0F && p.min_p <= 1.0F)) {
    return core::invalid_argument(fmt::format("min_p is {}; give a number from 0 to 1", p.min_p));
  }
  if (p.top_k < 0) {
    return core::invalid_argument(fmt::format("top_k is {}; give 0 (off) or more", p.top_k));
  }
  return {};
}

core::Status check_token_list(const Request& request, int vocab_size) {
  if (request.logit_bias.size() > kMaxLogitBiases) {
    return core::invalid_argument(fmt::format("logit_bias names {} tokens; give at most {}",
                                              request.logit_bias.size(), kMaxLogitBiases));
  }
  for (const LogitBias& bias : request.logit_bias) {
    if (bias.token < 0 || bias.token >= vocab_size) {
      return core::invalid_argument(
          fmt::format("logit_bias names token {}, which is not in the vocabulary of {} entries",
                      bias.token, vocab_size));
    }
    if (!(std::abs(bias.bias) <= 100.0F)) {
      return core::invalid_argument(
          fmt::format("the logit_bias of token {} is {}; give a number from -100 to 100",
                      bias.token, bias.bias));
    }
  }
  if (request.stop_tokens.size() > kMaxStopTokens) {
    return core::invalid_argument(fmt::format("there are {} stop tokens; give at most {}",
                                              request.stop_tokens.size(), kMaxStopTokens));
  }
  if (const auto& budget = request.thought_budget) {
    const bool is_known = budget->open >= 0 && budget->open < vocab_size && budget->close >= 0 &&
                          budget->close < vocab_size && budget->open != budget->close;
    if (!is_known || budget->max_tokens < 0) {
      return core::invalid_argument(fmt::format(
          "a thought budget of {} tokens between tokens {} and {}; give 0 or more and two tokens "
          "of the vocabulary",
          budget->max_tokens, budget->open, budget->close));
    }
  }
  for (const TokenId token : request.stop_tokens) {
    if (token < 0 || token >= vocab_size) {
      return core::invalid_argument(
          fmt::format("stop token {} is not in the vocabulary of {} entries", token, vocab_size));
    }
  }
  return {};
}

core::Status check_penalties(const Penalties& p) {
  for (const auto& [name, value] :
       {std::pair("presence_penalty", p.presence), {"frequency_penalty", p.frequency}}) {
    if (!(std::abs(value) <= 2.0F)) {
      return core::invalid_argument(
          fmt::format("{} is {}; give a number from -2 to 2", name, value));
    }
  }
  if (!(p.repetition > 0.0F && p.repetition <= 10.0F)) {
    return core::invalid_argument(
        fmt::format("repetition_penalty is {}; give a number above 0 and up to 10", p.repetition));
  }
  return {};
}

core::Status check_grammar(const Request& request, int vocab_size) {
  if (request.grammar == nullptr) return {};
  if (request.ignore_eos) {
    return core::invalid_argument(
        "ignore_eos and a grammar exclude each other: a grammar's text ends with an end token");
  }
  if (request.grammar->trie().vocab_size() != vocab_size) {
    return core::invalid_argument(
        fmt::format("the grammar was compiled for a vocabulary of {} entries, the model has {}",
                    request.grammar->trie().vocab_size(), vocab_size));
  }
  return {};
}

}  // namespace

core::Status check_request(const Request& request, int vocab_size, int context,
                           bool is_bound_by_kv) {
  TANDEM_TRY(check_prompt(request, vocab_size, context, is_bound_by_kv));
  TANDEM_TRY(check_sampling(request.sampling));
  if (request.max_tokens < 0) {
    return core::invalid_argument(
        fmt::format("max_tokens is {}; give 0 (no limit) or more", request.max_tokens));
  }
  if (request.min_tokens < 0 ||
      (request.max_tokens > 0 && request.min_tokens > request.max_tokens)) {
    return core::invalid_argument(
        fmt::format("min_tokens is {}; give a number from 0 to max_tokens", request.min_tokens));
  }
  for (const auto& [name, top] :
       {std::pair("logprobs", request.logprobs), {"prompt_logprobs", request.prompt_logprobs}}) {
    if (top && (*top < 0 || *top > kernels::kMaxTopLogprobs)) {
      return core::invalid_argument(
          fmt::format("{} asks for {} tokens; give 0 to {}", name, *top, kernels::kMaxTopLogprobs));
    }
  }
  TANDEM_TRY(check_token_list(request, vocab_size));
  TANDEM_TRY(check_penalties(request.penalties));
  TANDEM_TRY(check_grammar(request, vocab_size));
  if (request.draft_length && (*request.draft_length < 0 || *request.draft_length > kMaxDraft)) {
    return core::invalid_argument(
        fmt::format("draft_length is {}; give 0 to {}", *request.draft_length, kMaxDraft));
  }
  for (const std::string& stop : request.stop) {
    // A stop string that starts inside a character would cut one in the output.
    if (stop.empty() || (static_cast<unsigned char>(stop[0]) & 0xC0U) == 0x80U) {
      return core::invalid_argument("a stop string is empty or does not start with a character");
    }
  }
  return {};
}

}  // namespace tandem::engine
