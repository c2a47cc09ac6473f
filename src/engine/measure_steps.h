#pragma once

#include <functional>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/engine/step_cost.h"
#include "tandem/model/step_runner.h"

namespace tandem::engine {

/// A measured step.
struct StepMeasurement {
  StepWork work;
  double seconds = 0;
};

/// Runs steps of made-up sequences and times them, so that the first requests already draft at a
/// good length: 1, 8 and all sequences of a few tokens, that verify and make 0, 1, 2 and 4 drafts
/// each. Measures no more once `budget_seconds` have passed; what is left out is learned while
/// serving. Nothing else may run: it takes the slots and one page a slot and kind from id 0 on.
/// clock: seconds. Fails where a step does.
core::Result<std::vector<StepMeasurement>> measure_steps(model::StepRunner& runner,
                                                         const std::function<double()>& clock,
                                                         double budget_seconds);

}  // namespace tandem::engine
