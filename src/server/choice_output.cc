#include "tandem/server/choice_output.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tandem::server {
namespace {
constexpr auto kContent = chat::OutputPart::Kind::kContent;

/// The prompt's tokens with `top` alternatives each; before the first one nothing is.
std::vector<ScoredToken> scores_of_prompt(const engine::Event& event, TokenId first, int top) {
  constexpr float kNothingBefore = std::numeric_limits<float>::quiet_NaN();
  std::vector<ScoredToken> scores;
  scores.push_back({{{first, kNothingBefore}, {}}});
  for (const kernels::TokenLogprobs& each : event.prompt_logprobs) {
    scores.push_back({each});
    auto& alternatives = scores.back().top;
    alternatives.resize(std::min(alternatives.size(), static_cast<std::size_t>(top)));
  }
  return scores;
}

}  // namespace

ChoiceOutput::ChoiceOutput(const tokenizer::Tokenizer& tokenizer, Options options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      parser_(tokenizer),
      stop_(options_.is_chat ? options_.stop : std::vector<std::string>()) {}

Delta ChoiceOutput::push(const engine::Event& event) {
  static_cast<engine::Usage&>(usage_) = event.usage;
  Delta delta;
  if (!std::exchange(is_begun_, true)) push_prompt(event, delta);
  options_.is_chat ? push_chat(event, delta) : push_text(event, delta);
  return delta;
}

void ChoiceOutput::push_text(const engine::Event& event, Delta& delta) {
  delta.add(kContent, event.text);
  for (const kernels::TokenLogprobs& each : event.logprobs) {
    const TokenId token = each.chosen.token;
    const bool is_shown =
        !is_end(token) && tokenizer_->kind(token) != tokenizer::TokenKind::kControl;
    delta.logprobs.push_back({each, is_shown});
  }
  if (event.finish) finish(*event.finish);
}

void ChoiceOutput::push_prompt(const engine::Event& event, Delta& delta) {
  if (const auto& echo = options_.echo) {
    delta.add(kContent, echo->text);
    if (options_.logprobs) {
      delta.logprobs = scores_of_prompt(event, echo->first_token, *options_.logprobs);
      delta.logprobs.front().is_shown = echo->shows_first;
    }
  }
  if (options_.prompt_logprobs) {
    delta.prompt_logprobs = scores_of_prompt(event, {}, *options_.prompt_logprobs);
  }
}

void ChoiceOutput::push_chat(const engine::Event& event, Delta& delta) {
  const std::size_t count = event.tokens.size();
  for (std::size_t i = 0; i < count && !is_end(event.tokens[i]); ++i) {
    push_token(event, i, delta);
    if (is_finished()) {
      usage_.completion_tokens -= static_cast<int>(count - i - 1);
      return;
    }
  }
  if (!event.finish) return;
  take(parser_.finish(), delta);
  if (is_finished()) return;
  delta.add(kContent, stop_.flush());
  finish(*event.finish);
}

void ChoiceOutput::push_token(const engine::Event& event, std::size_t index, Delta& delta) {
  const TokenId token = event.tokens[index];
  const bool was_in_thought = parser_.in_thought();
  chat::OutputDelta parsed;
  parser_.push(token, parsed);
  if (was_in_thought || parser_.in_thought()) ++usage_.reasoning_tokens;
  if (!event.logprobs.empty() && parser_.in_content() && !is_special(token)) {
    delta.logprobs.push_back({event.logprobs[index]});
  }
  take(std::move(parsed), delta);
}

/// Moves what the parser gave out, the content through the search for stop strings.
void ChoiceOutput::take(chat::OutputDelta parsed, Delta& delta) {
  for (chat::OutputPart& part : parsed.parts) {
    if (part.kind != kContent) {
      delta.add(std::move(part));
      continue;
    }
    delta.add(kContent, stop_.push(part.text));
    if (stop_.found()) return finish(engine::FinishReason::kStop);
  }
  if (!options_.parallel_tool_calls && parser_.has_calls()) {
    delta.add(kContent, stop_.flush());
    finish(engine::FinishReason::kStop);
  }
}

bool ChoiceOutput::is_end(TokenId token) const {
  const auto& stops = options_.stop_tokens;
  return (!options_.ignore_eos && tokenizer_->is_end_of_generation(token)) ||
         std::find(stops.begin(), stops.end(), token) != stops.end();
}

bool ChoiceOutput::is_special(TokenId token) const {
  const tokenizer::TokenKind kind = tokenizer_->kind(token);
  return kind == tokenizer::TokenKind::kControl || kind == tokenizer::TokenKind::kUserDefined;
}

void ChoiceOutput::finish(engine::FinishReason reason) {
  if (reason == engine::FinishReason::kLength) {
    finish_reason_ = "length";
  } else {
    finish_reason_ = options_.is_chat && parser_.has_calls() ? "tool_calls" : "stop";
  }
}

}  // namespace tandem::server
