#include "tandem/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "tandem/core/check.h"

namespace tandem::engine {

Scheduler::Scheduler(const SchedulerOptions& options, KvManager& kv) : options_(options), kv_(&kv) {
  TANDEM_CHECK(options.max_sequences <= std::min(options.max_rows, options.max_kept_rows),
               "every running sequence gets a row");
  for (int slot = options.max_sequences; slot-- > 0;) free_slots_.push_back(slot);
}

void Scheduler::add(Sequence& sequence) {
  waiting_.push_back(&sequence);
}

void Scheduler::remove(Sequence& sequence) {
  if (sequence.state == SequenceState::kWaiting) {
    std::erase(waiting_, &sequence);
  } else {
    leave_slot(sequence);
  }
}

void Scheduler::preempt(Sequence& sequence) {
  if (sequence.is_started) ++preemptions_;
  leave_slot(sequence);
  waiting_.insert(std::ranges::upper_bound(waiting_, sequence.age, {}, &Sequence::age), &sequence);
}

void Scheduler::leave_slot(Sequence& sequence) {
  std::erase(running_, &sequence);
  kv_->release(sequence);
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.held_drafts = 0;
  sequence.is_started = false;
  sequence.state = SequenceState::kWaiting;
}

PlannedStep& Scheduler::plan() {
  step_.plan.spans.clear();
  step_.sequences.clear();
  step_.started.clear();
  assignments_.clear();
  rows_left_ = options_.max_rows;
  kept_left_ = options_.max_kept_rows;
  has_preempted_ = false;
  plan_decodes();
  prompt_rows_left_ = std::min(rows_left_, options_.prefill_chunk);
  if (!assignments_.empty()) {
    prompt_rows_left_ = std::min(prompt_rows_left_, options_.prompt_rows_while_decoding);
  }
  if (!has_preempted_) admit();
  plan_prompts();
  build_spans();
  return step_;
}

void Scheduler::plan_decodes() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    if (s.state != SequenceState::kDecode) continue;
    while (!kv_->reserve(s, s.computed + 1) && preempt_youngest(s) != &s) {
    }
    if (s.state != SequenceState::kDecode) break;  // it was the youngest: nobody follows
    assign(s, 1);
  }
  add_drafts();
}

void Scheduler::add_drafts() {
  // Drafts take only rows and pages that are left when every running sequence has its own, and
  // leave prompts a share: nobody ever waits for drafts.
  const auto newcomers = static_cast<int>(std::min(waiting_.size(), free_slots_.size()));
  const bool has_prompts = newcomers > 0 || assignments_.size() < running_.size();
  const int rows_for_prompts = has_prompts ? options_.max_rows / 4 : 0;
  int draft_rows =
      std::min(options_.max_rows - rows_for_prompts, options_.max_kept_rows - newcomers) -
      num_running();
  for (Assignment& assignment : assignments_) {
    Sequence& s = *assignment.sequence;
    int drafts = std::min({s.held_drafts, s.useful_drafts(), draft_rows});
    if (drafts <= 0) continue;
    if (!kv_->reserve(s, s.computed + 1 + drafts)) {
      drafts = std::min(drafts, kv_->reserved_end(s) - s.computed - 1);
    }
    assignment.rows += drafts;
    draft_rows -= drafts;
    rows_left_ -= drafts;
    kept_left_ -= drafts;
  }
}

void Scheduler::admit() {
  while (!waiting_.empty() && !free_slots_.empty() && prompt_rows_left_ > 0 && kept_left_ > 0) {
    Sequence& s = *waiting_.front();
    if (!running_.empty() && !kv_->fits(s, options_.prompt_rows_while_decoding, pages_to_come())) {
      return;
    }
    waiting_.pop_front();
    s.slot = free_slots_.back();
    free_slots_.pop_back();
    s.state = SequenceState::kPrefill;
    s.known_prefix = kv_->known_prefix(s);
    running_.insert(std::ranges::upper_bound(running_, s.age, {}, &Sequence::age), &s);
  }
}

PageCounts Scheduler::pages_to_come() const {
  // A page more of each kind per sequence: without it the newcomer would be preempted as soon as
  // the others grow.
  PageCounts sum = {};
  sum.fill(num_running());
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::kPrefill) continue;
    sum = sum + kv_->pages_to_come(*s, options_.prompt_rows_while_decoding);
  }
  return sum;
}

Scheduler::Share Scheduler::wanted(const Sequence& s) {
  const int rows = s.length() - (s.is_started ? s.computed : s.known_prefix);
  return {rows, s.is_scoring() ? s.score_end - s.num_scored : 1};
}

void Scheduler::plan_prompts() {
  prompts_.clear();
  for (Sequence* s : running_) {
    if (s->state == SequenceState::kPrefill) prompts_.push_back(s);
  }
  if (prompts_.empty()) return;
  Sequence* const oldest = prompts_.front();
  std::ranges::sort(prompts_, {},
                    [](const Sequence* s) { return std::pair(wanted(*s).rows, s->age); });
  Share shorter;  // what they want of the halves that are not the oldest one's
  const Share half = {prompt_rows_left_ / 2, kept_left_ / 2};
  for (auto s = prompts_.begin(); *s != oldest; ++s) {
    const Share share = wanted(**s);
    shorter.rows += std::min(share.rows, half.rows - shorter.rows);
    shorter.kept += std::min(share.kept, half.kept - shorter.kept);
  }
  plan_chunk(*oldest, {prompt_rows_left_ - shorter.rows, kept_left_ - shorter.kept});
  for (Sequence* s : prompts_) {
    if (s != oldest) plan_chunk(*s, {prompt_rows_left_, kept_left_});
  }
}

void Scheduler::plan_chunk(Sequence& s, Share share) {
  // A sequence before this one may have preempted it.
  if (s.state != SequenceState::kPrefill || share.rows <= 0 || share.kept <= 0) return;
  if (!s.is_started) kv_->attach_prefix(s);
  const int rows = reserve_chunk(s, share);
  if (rows > 0) {
    assign(s, rows);
  } else if (!s.is_started) {
    kv_->release(s);
  }
}

int Scheduler::reserve_chunk(Sequence& s, Share share) {
  int rows = std::min(s.length() - s.computed, share.rows);
  if (s.scores_next()) {
    rows = std::min({rows, s.score_end - s.computed, share.kept});
  } else if (s.is_scoring()) {  // preempted: up to where it was
    rows = std::min(rows, s.num_scored - s.computed);
  }
  while (!kv_->reserve(s, s.computed + rows)) {
    const int possible = kv_->reserved_end(s) - s.computed;
    if (possible > 0) return std::min(rows, possible);
    if (preempt_youngest(s) == nullptr) {
      kv_->trim(s);
      return 0;
    }
    if (s.state != SequenceState::kPrefill) return 0;
  }
  return rows;
}

void Scheduler::assign(Sequence& s, int rows) {
  assignments_.push_back({&s, rows});
  if (!s.is_started) {
    s.is_started = true;
    if (!s.was_started) s.cached_prompt = std::min(s.computed, s.num_prompt);
    s.was_started = true;
    step_.started.push_back(&s);
  }
  rows_left_ -= rows;
  if (s.state == SequenceState::kDecode) {
    kept_left_ -= rows;
  } else {
    prompt_rows_left_ -= rows;
    if (s.scores_next()) {
      kept_left_ -= rows;
    } else if (s.computed + rows == s.length()) {
      --kept_left_;
    }
  }
}

bool Scheduler::is_assigned(const Sequence& s) const {
  return std::ranges::find(assignments_, &s, &Assignment::sequence) != assignments_.end();
}

Sequence* Scheduler::preempt_youngest(const Sequence& for_whom) {
  const auto victim = std::find_if(running_.rbegin(), running_.rend(),
                                   [this](const Sequence* s) { return !is_assigned(*s); });
  if (victim == running_.rend() || (*victim)->age < for_whom.age) return nullptr;
  Sequence& s = **victim;
  preempt(s);
  has_preempted_ = true;
  return &s;
}

void Scheduler::build_spans() {
  for (const auto& [s, rows] : assignments_) {
    kernels::Span span;
    span.slot = s->slot;
    if (s->state == SequenceState::kDecode) {
      span.first_position = s->computed;
      span.num_drafts = rows - 1;
    } else {
      span.prompt = std::span(s->tokens).subspan(static_cast<std::size_t>(s->computed),
                                                 static_cast<std::size_t>(rows));
      span.first_position = s->computed;
      if (s->scores_next()) {
        span.keep = kernels::Keep::kAll;
      } else if (s->computed + rows == s->length()) {
        span.keep = kernels::Keep::kLast;
      }
    }
    for (const AttentionKind kind : kAttentionKinds) {
      span.pages[index_of(kind)] = s->tables[index_of(kind)].pages;
    }
    step_.plan.spans.push_back(span);
    step_.sequences.push_back(s);
  }
}

}  // namespace tandem::engine
