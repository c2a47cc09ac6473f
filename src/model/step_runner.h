#pragma once

#include <functional>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/step.h"

namespace tandem::model {

/// What the engine needs of a model: run a planned step. Model implements it; engine tests use a
/// scripted one. Thread: the engine thread.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  struct Limits {
    int max_sequences = 0;    ///< slots
    int max_rows = 0;         ///< T of a step
    int max_kept_rows = 0;    ///< R of a step
    int max_context = 0;      ///< positions of a sequence
    int window = 0;           ///< W
    int max_draft = 0;        ///< 0 without a drafter
    bool runs_ahead = false;  ///< a step leaves its caller time until its result is there
    std::size_t kv_memory_bytes = 0;
    bool kv_is_reserved = false;  ///< taken from the start: keeping pages costs nothing
    kernels::KvLayout kv;
  };
  virtual const Limits& limits() const = 0;

  /// Starts a new sequence in a slot.
  virtual void set_slot(int slot, const kernels::SamplingParams& sampling) = 0;

  /// Runs one step to its end. The plan must respect limits() (CHECK). `meanwhile` is called once,
  /// where it delays nothing if limits().runs_ahead. kInternal: device fault.
  virtual core::Result<kernels::StepResult> step(const kernels::StepPlan& plan,
                                                 const std::function<void()>& meanwhile) = 0;
  core::Result<kernels::StepResult> step(const kernels::StepPlan& plan) {
    return step(plan, [] {});
  }
};

}  // namespace tandem::model
