#include "tandem/engine/output_rules.h"

#include <algorithm>
#include <limits>

#include "tandem/core/check.h"

namespace tandem::engine {

std::unique_ptr<OutputRules> OutputRules::make(const Request& request,
                                               const tokenizer::Tokenizer& tokenizer) {
  if (!request.penalties.any() && request.logit_bias.empty() && request.min_tokens == 0 &&
      !request.logprobs && request.grammar == nullptr && !request.thought_budget) {
    return nullptr;
  }
  std::vector<TokenId> ends = request.stop_tokens;
  if (!request.ignore_eos) {
    const std::vector<TokenId> all = tokenizer.end_of_generation();
    ends.insert(ends.end(), all.begin(), all.end());
  }
  return std::unique_ptr<OutputRules>(new OutputRules(request, ends, tokenizer.vocab_size()));
}

OutputRules::OutputRules(const Request& request, std::span<const TokenId> ends, int vocab_size)
    : penalties_(request.penalties),
      min_tokens_(request.min_tokens),
      top_logprobs_(request.logprobs),
      mask_words_((static_cast<std::size_t>(vocab_size) + 31) / 32),
      thought_budget_(request.thought_budget) {
  for (const LogitBias& bias : request.logit_bias) entries_[bias.token].bias += bias.bias;
  if (min_tokens_ > 0) {
    for (const TokenId token : ends) entries_[token].is_end = true;
  }
  if (request.grammar != nullptr) matcher_.emplace(request.grammar);
  for (const TokenId token : request.prompt) {
    thought_tokens_ = std::min(thought_after(thought_tokens_, token), 0);
  }
  if (penalties_.repetition != 1.0F) {
    for (const TokenId token : request.prompt) entries_[token].occurred = true;
  }
}

void OutputRules::count(TokenId token, int by) {
  if (!penalties_.any()) return;
  const auto it = entries_.try_emplace(token).first;
  it->second.count += by;
  if (it->second == Entry{}) entries_.erase(it);  // a draft that was not accepted
}

void OutputRules::fill(bool may_end, std::vector<kernels::LogitChange>& changes) const {
  changes.clear();
  for (const auto& [token, entry] : entries_) {
    kernels::LogitChange change;
    change.token = token;
    if (entry.occurred || entry.count > 0) change.divisor = penalties_.repetition;
    if (entry.count > 0) {
      change.addend -= penalties_.presence + penalties_.frequency * static_cast<float>(entry.count);
    }
    change.addend += entry.bias;
    if (entry.is_end && !may_end) change.addend = -std::numeric_limits<float>::infinity();
    if (change.divisor != 1.0F || change.addend != 0.0F) changes.push_back(change);
  }
}

int OutputRules::count_useful(std::span<const TokenId> drafts) {
  const int size = static_cast<int>(drafts.size());
  if (!matcher_ || drafts.empty()) return size;
  ahead_ = matcher_;
  for (int i = 0; i < size; ++i) {
    if (!ahead_->accept(drafts[static_cast<std::size_t>(i)]) || ahead_->is_finished()) return i;
  }
  return size;
}

int OutputRules::thought_after(int thought_tokens, TokenId token) const {
  if (!thought_budget_ || token == thought_budget_->close) return kNoThought;
  if (token == thought_budget_->open) return 0;
  return thought_tokens == kNoThought ? kNoThought : thought_tokens + 1;
}

bool OutputRules::must_close(int thought_tokens) const {
  if (!thought_budget_ || thought_tokens < thought_budget_->max_tokens) return false;
  return !ahead_ || grammar::Matcher(*ahead_).accept(thought_budget_->close);
}

std::span<const std::uint32_t> OutputRules::close_mask(std::size_t row) {
  const TokenId close = thought_budget_->close;
  masks_[row].assign(mask_words_, 0U);
  masks_[row][static_cast<std::size_t>(close) / 32] = 1U << (close % 32);
  return masks_[row];
}

std::span<const std::uint32_t> OutputRules::grammar_mask(std::size_t row,
                                                         grammar::TrieWalker& walker) {
  if (!ahead_ || !status_.ok()) return {};
  masks_[row].resize(mask_words_);
  status_ = ahead_->fill_mask(masks_[row], walker);
  if (!status_.ok()) return {};
  return masks_[row];
}

std::span<const kernels::RowRule> OutputRules::rows(std::span<const TokenId> drafts,
                                                    grammar::TrieWalker& walker) {
  TANDEM_CHECK(drafts.size() <= kMaxDraft, "more drafts than a span can hold");
  rules_.clear();
  ahead_ = matcher_;
  int thought_tokens = thought_tokens_;
  for (std::size_t row = 0; row <= drafts.size(); ++row) {
    kernels::RowRule rule;
    if (row > 0) {
      const TokenId draft = drafts[row - 1];
      count(draft, 1);
      thought_tokens = thought_after(thought_tokens, draft);
      if (ahead_) TANDEM_CHECK(ahead_->accept(draft), "a useful draft");
    }
    const bool closes = must_close(thought_tokens);
    rule.mask = closes ? close_mask(row) : grammar_mask(row, walker);
    const int length = output_length_ + static_cast<int>(row);
    const bool is_forced = closes || (ahead_ && ahead_->must_end());
    fill(length >= min_tokens_ || is_forced, changes_[row]);
    rule.changes = changes_[row];
    rule.top_logprobs = top_logprobs_;
    rules_.push_back(rule);
  }
  for (const TokenId draft : drafts) count(draft, -1);
  return rules_;
}

void OutputRules::commit(std::span<const TokenId> tokens) {
  output_length_ += static_cast<int>(tokens.size());
  for (const TokenId token : tokens) {
    count(token, 1);
    thought_tokens_ = thought_after(thought_tokens_, token);
    if (!matcher_ || !status_.ok() || matcher_->accept(token)) continue;
    status_ = core::resource_exhausted(
        "the grammar is too ambiguous to be followed through this text; simplify it");
  }
}

}  // namespace tandem::engine
