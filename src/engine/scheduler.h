#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "tandem/engine/kv_manager.h"
#include "tandem/engine/sequence.h"
#include "tandem/kernels/step.h"

namespace tandem::engine {

struct SchedulerOptions {
  int max_sequences = 0;  ///< slots; <= max_rows and <= max_kept_rows
  int max_rows = 0;       ///< T of a step
  int max_kept_rows = 0;  ///< R of a step
  int prefill_chunk = 0;  ///< most prompt rows of a step
  /// Most prompt rows of a step that also decodes: bounds the pause that a long prompt puts
  /// between two tokens of the others.
  int prompt_rows_while_decoding = 0;
};

/// A step to run. Valid until the scheduler is called again.
struct PlannedStep {
  kernels::StepPlan plan;
  std::vector<Sequence*> sequences;  ///< of plan.spans, same order
  std::vector<Sequence*> started;    ///< their first rows in their slot: set it before running
};

/// Decides what the next step computes: state in, plan out; no clock, no device.
/// Decode spans come first, oldest sequence first; then prompts in chunks, as many as the row
/// budget holds: at least half of the rows go to the oldest prompt, the others to those with fewer
/// rows left than it, the shortest first. So a short prompt does not wait for long ones, a long one
/// takes at most twice the steps that it would take in order of arrival, and prompts of one length
/// come in that order. Rows to be scored take kept rows, shared in the same way, and a prompt's
/// last row, which samples, comes in a chunk after them.
/// A waiting sequence gets a slot, in order of arrival, when one is free and its whole text fits
/// beside what the others still need; pages only with its first rows, so that it finds in the
/// prefix cache what others computed meanwhile. When pages run out, the youngest sequence gives its
/// own back and goes to the head of the queue; it computes prompt and output again later, which
/// does not change its text. The oldest can always run. Thread: engine.
class Scheduler {
 public:
  /// `kv` must outlive the scheduler.
  Scheduler(const SchedulerOptions& options, KvManager& kv);

  /// Queues a sequence; its address must not change until remove().
  void add(Sequence& sequence);
  /// Forgets a sequence in whatever state; slot and pages are given back.
  void remove(Sequence& sequence);
  /// Takes slot and pages from a running sequence, which waits again in its place by age.
  void preempt(Sequence& sequence);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  int num_running() const { return static_cast<int>(running_.size()); }
  std::uint64_t preemptions() const { return preemptions_; }

  /// The next step; no span if nothing can run. Pages are reserved, next_drafts is left 0.
  PlannedStep& plan();

 private:
  struct Assignment {
    Sequence* sequence = nullptr;
    int rows = 0;
  };
  /// Prompt rows of a step, and how many of them may be kept.
  struct Share {
    int rows = 0;
    int kept = 0;
  };

  void plan_decodes();
  void add_drafts();
  void admit();
  /// Pages that the running sequences may still take before their next tokens.
  PageCounts pages_to_come() const;
  void plan_prompts();
  /// Gives a sequence the next chunk of its prompt that share and pages allow, if any.
  void plan_chunk(Sequence& sequence, Share share);
  int reserve_chunk(Sequence& sequence, Share share);
  /// Rows that a prompt wants, all in all.
  static Share wanted(const Sequence& sequence);
  void assign(Sequence& sequence, int rows);
  bool is_assigned(const Sequence& sequence) const;
  /// Preempts the youngest running sequence that has no part in this step yet and is not older
  /// than `for_whom`. Null if there is none.
  Sequence* preempt_youngest(const Sequence& for_whom);
  void leave_slot(Sequence& sequence);
  void build_spans();

  SchedulerOptions options_;
  KvManager* kv_;
  std::vector<Sequence*> running_;  // by age
  std::deque<Sequence*> waiting_;   // by age
  std::vector<int> free_slots_;     // a stack
  std::uint64_t preemptions_ = 0;

  // The step being planned.
  PlannedStep step_;
  std::vector<Assignment> assignments_;
  std::vector<Sequence*> prompts_;  // running ones, the shortest first
  int rows_left_ = 0;
  int prompt_rows_left_ = 0;
  int kept_left_ = 0;
  bool has_preempted_ = false;
};

}  // namespace tandem::engine
