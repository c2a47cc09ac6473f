#include "tandem/kernels/host_step.h"

#include <algorithm>
#include <cstddef>

#include "tandem/core/check.h"

namespace tandem::kernels {

void HostStep::configure(const Geometry& geometry) {
  acceptance_ = geometry.acceptance;
  hidden_ = geometry.hidden;
  vocab_ = geometry.vocab;
  max_rows_ = geometry.max_rows;
  max_kept_rows_ = geometry.max_kept_rows;
  slots_.resize(static_cast<std::size_t>(geometry.max_sequences));
  for (Slot& slot : slots_) {
    slot.hidden.assign(static_cast<std::size_t>(hidden_), 0.0F);
    slot.draft_hidden.assign(static_cast<std::size_t>(hidden_), 0.0F);
  }
}

const HostStep::Slot& HostStep::slot(int i) const {
  TANDEM_CHECK(i >= 0 && static_cast<std::size_t>(i) < slots_.size(), "no such slot");
  return slots_[static_cast<std::size_t>(i)];
}

void HostStep::set_slot(int i, const SamplingParams& sampling) {
  Slot& s = slot(i);
  s.sampling = sampling;
  s.token = 0;
  s.position = 0;
  s.num_drafts = 0;
  std::fill(s.hidden.begin(), s.hidden.end(), 0.0F);
}

SlotSnapshot HostStep::read_slot(int i) const {
  const Slot& s = slot(i);
  SlotSnapshot out;
  out.token = s.token;
  out.position = s.position;
  out.drafts.assign(s.drafts.begin(), s.drafts.begin() + s.num_drafts);
  out.hidden = s.hidden;
  out.draft_hidden = s.draft_hidden;
  return out;
}

HostStep::SpanState HostStep::make_span_state(const Span& span) {
  Slot& s = slot(span.slot);
  TANDEM_CHECK(s.last_step != step_, "a slot may have one span per step");
  s.last_step = step_;
  TANDEM_CHECK(span.next_drafts >= 0 && span.next_drafts <= kMaxDraft, "next_drafts out of range");

  SpanState out;
  out.slot = span.slot;
  if (span.is_decode()) {
    TANDEM_CHECK(span.num_drafts >= 0 && span.num_drafts <= s.num_drafts,
                 "a span cannot verify more drafts than its slot holds");
    out.num_rows = 1 + span.num_drafts;
    out.num_kept = out.num_rows;
    out.num_sampled = out.num_rows;
  } else {
    out.num_rows = static_cast<std::int32_t>(span.prompt.size());
    out.num_sampled = span.keep == Keep::kLast ? 1 : 0;
    out.num_kept = span.keep == Keep::kAll ? out.num_rows : out.num_sampled;
  }
  out.next_drafts = out.num_sampled > 0 ? span.next_drafts : 0;
  out.is_scored = !span.is_decode() && span.keep == Keep::kAll && !span.rules.empty();
  if (out.is_scored) out.num_sampled = out.num_rows;
  for (std::size_t kind = 0; kind < span.pages.size(); ++kind) {
    out.pages[kind] = {pages_.size(), span.pages[kind].size()};
    pages_.insert(pages_.end(), span.pages[kind].begin(), span.pages[kind].end());
  }
  return out;
}

void HostStep::add_run(const Span& span, int span_index, int first_offset, int num_rows) {
  if (num_rows == 0) return;
  std::vector<RowInfo>& rows = rows_[index(RowSet::kStep)];
  runs_[index(RowSet::kStep)].push_back(
      {span_index, static_cast<std::int32_t>(rows.size()), num_rows});
  const Slot& s = slots_[static_cast<std::size_t>(span.slot)];
  for (int offset = first_offset; offset < first_offset + num_rows; ++offset) {
    RowInfo row;
    row.span = span_index;
    row.slot = span.slot;
    if (span.is_decode()) {
      row.token = offset == 0 ? s.token : s.drafts[static_cast<std::size_t>(offset - 1)];
      row.position = s.position + offset;
    } else {
      row.token = span.prompt[static_cast<std::size_t>(offset)];
      row.position = span.first_position + offset;
    }
    TANDEM_CHECK(row.token >= 0 && row.token < vocab_, "token id outside the vocabulary");
    row.visible_end = row.position + 1;
    rows.push_back(row);
  }
}

void HostStep::add_sampled_rows(const Span& span, const SpanState& state) {
  const auto num_sampled = static_cast<std::size_t>(state.num_sampled);
  TANDEM_CHECK(span.rules.empty() || span.rules.size() == num_sampled,
               "a rule for every sampled row or none");
  const std::size_t mask_words = (static_cast<std::size_t>(vocab_) + 31) / 32;
  for (const RowRule& rule : span.rules) {
    TANDEM_CHECK(rule.mask.empty() || rule.mask.size() == mask_words, "a bit for every token");
    TANDEM_CHECK(rule.given.has_value() == state.is_scored, "scored rows alone are given a token");
    TANDEM_CHECK(!rule.given || (*rule.given >= 0 && *rule.given < vocab_),
                 "token id outside the vocabulary");
  }
  const Slot& s = slots_[static_cast<std::size_t>(state.slot)];
  for (std::size_t i = 0; i < num_sampled; ++i) {
    const std::int32_t row = state.first_kept + static_cast<std::int32_t>(i);
    const Position position = rows_[index(RowSet::kStep)][static_cast<std::size_t>(row)].position;
    sampled_.push_back(
        {row, position + 1, &s.sampling, span.rules.empty() ? nullptr : &span.rules[i]});
  }
}

Backend::StepShape HostStep::begin(const StepPlan& plan) {
  ++step_;
  spans_.clear();
  pages_.clear();
  sampled_.clear();
  for (auto& rows : rows_) rows.clear();
  for (auto& runs : runs_) runs.clear();
  draft_counts_ = {};
  result_.spans.assign(plan.spans.size(), SpanResult{});

  const int num_spans = static_cast<int>(plan.spans.size());
  const std::vector<RowInfo>& rows = rows_[index(RowSet::kStep)];
  for (int i = 0; i < num_spans; ++i) {
    const Span& span = plan.spans[static_cast<std::size_t>(i)];
    SpanState state = make_span_state(span);
    state.first_kept = static_cast<std::int32_t>(rows.size());
    add_run(span, i, state.num_rows - state.num_kept, state.num_kept);
    add_sampled_rows(span, state);
    spans_.push_back(state);
    SpanResult& result = result_.spans[static_cast<std::size_t>(i)];
    result.slot = span.slot;
    result.num_drafted = span.is_decode() ? span.num_drafts : 0;
    for (int k = 0; k < state.next_drafts; ++k) ++draft_counts_[static_cast<std::size_t>(k)];
  }
  kept_rows_ = static_cast<int>(rows.size());
  logprobs_.resize(sampled_.size());
  for (int i = 0; i < num_spans; ++i) {
    const Span& span = plan.spans[static_cast<std::size_t>(i)];
    const SpanState& state = spans_[static_cast<std::size_t>(i)];
    add_run(span, i, 0, state.num_rows - state.num_kept);
    if (!span.is_decode()) {
      Slot& s = slots_[static_cast<std::size_t>(span.slot)];
      s.position = span.first_position + state.num_rows;
      s.num_drafts = 0;
    }
  }
  broken_.assign(rows.size(), 0);
  TANDEM_CHECK(static_cast<int>(rows.size()) <= max_rows_, "the step has too many rows");
  TANDEM_CHECK(kept_rows_ <= max_kept_rows_, "the step has too many kept rows");

  int draft_steps = 0;
  while (draft_counts_[static_cast<std::size_t>(draft_steps)] > 0) ++draft_steps;
  return {static_cast<int>(rows.size()), kept_rows_, draft_counts_[0], draft_steps};
}

std::span<const PageId> HostStep::pages(int span, AttentionKind kind) const {
  const PageRange range = spans_[static_cast<std::size_t>(span)].pages[index_of(kind)];
  return std::span<const PageId>(pages_).subspan(range.begin, range.size);
}

void HostStep::accept(std::span<const TokenId> chosen, std::span<const float> h) {
  const auto width = static_cast<std::size_t>(hidden_);
  TANDEM_CHECK(chosen.size() == sampled_.size(), "one token per sampled row");
  TANDEM_CHECK(h.size() == static_cast<std::size_t>(kept_rows_) * width, "h must be [R, E]");
  std::size_t next_chosen = 0;
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const SpanState& span = spans_[i];
    if (span.num_sampled == 0) continue;
    const std::size_t first_chosen = next_chosen;
    SpanResult& result = result_.spans[i];
    Slot& s = slots_[static_cast<std::size_t>(span.slot)];
    const std::span<const TokenId> tokens =
        chosen.subspan(next_chosen, static_cast<std::size_t>(span.num_sampled));
    next_chosen += tokens.size();
    if (span.is_scored) {
      take_logprobs(first_chosen, span.num_sampled, result);
      continue;
    }

    std::size_t accepted = 0;
    if (acceptance_.positions > 0) {
      accepted = static_cast<std::size_t>(
          acceptance_.accepted(span.slot, s.position, span.num_sampled - 1));
    }
    while (acceptance_.positions == 0 && accepted + 1 < tokens.size() &&
           tokens[accepted] == s.drafts[accepted]) {
      ++accepted;
    }
    const std::size_t row = static_cast<std::size_t>(span.first_kept) + accepted;
    s.token = tokens[accepted];
    s.position = rows_[index(RowSet::kStep)][row].position + 1;
    s.num_drafts = span.next_drafts;
    std::copy_n(h.begin() + static_cast<std::ptrdiff_t>(row * width), width, s.hidden.begin());

    result.num_tokens = static_cast<std::int32_t>(accepted) + 1;
    std::copy_n(tokens.begin(), accepted + 1, result.tokens.begin());
    take_logprobs(first_chosen, result.num_tokens, result);
  }
  // Counting passes: a stable order by length without the memory that a stable sort takes.
  for (int length = kMaxDraft; length > 0; --length) {
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      if (spans_[i].next_drafts == length) add_draft_row(static_cast<int>(i));
    }
  }
}

void HostStep::take_logprobs(std::size_t first_sampled, std::int32_t count, SpanResult& result) {
  const RowRule* rule = sampled_[first_sampled].rule;
  if (rule == nullptr || !rule->top_logprobs) return;
  const auto first = logprobs_.begin() + static_cast<std::ptrdiff_t>(first_sampled);
  result.logprobs.assign(first, first + count);
}

StepResult HostStep::take_result() {
  for (std::size_t r = 0; r < broken_.size(); ++r) {
    const auto span = static_cast<std::size_t>(rows_[index(RowSet::kStep)][r].span);
    if (broken_[r] != 0) result_.spans[span].is_broken = true;
  }
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const Slot& s = slots_[static_cast<std::size_t>(spans_[i].slot)];
    SpanResult& result = result_.spans[i];
    result.num_next_drafts = s.num_drafts;
    std::copy_n(s.drafts.begin(), s.num_drafts, result.next_drafts.begin());
  }
  return std::move(result_);
}

void HostStep::add_draft_row(int span_index) {
  const SpanState& span = spans_[static_cast<std::size_t>(span_index)];
  Slot& s = slots_[static_cast<std::size_t>(span.slot)];
  std::copy(s.hidden.begin(), s.hidden.end(), s.draft_hidden.begin());
  std::vector<RowInfo>& rows = rows_[index(RowSet::kDraft)];
  runs_[index(RowSet::kDraft)].push_back({span_index, static_cast<std::int32_t>(rows.size()), 1});
  rows.push_back({span_index, span.slot, s.token, s.position, s.position});
}

TokenId HostStep::draft_token(int i, int r) const {
  const RowInfo& row = rows_[index(RowSet::kDraft)][static_cast<std::size_t>(r)];
  const Slot& s = slots_[static_cast<std::size_t>(row.slot)];
  return i == 0 ? s.token : s.drafts[static_cast<std::size_t>(i - 1)];
}

std::span<float> HostStep::draft_hidden(int r) {
  const RowInfo& row = rows_[index(RowSet::kDraft)][static_cast<std::size_t>(r)];
  return slots_[static_cast<std::size_t>(row.slot)].draft_hidden;
}

void HostStep::set_draft(int i, int r, TokenId token) {
  const RowInfo& row = rows_[index(RowSet::kDraft)][static_cast<std::size_t>(r)];
  slots_[static_cast<std::size_t>(row.slot)].drafts[static_cast<std::size_t>(i)] = token;
}

}  // namespace tandem::kernels
