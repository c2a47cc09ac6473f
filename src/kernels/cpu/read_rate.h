#pragma once

#include "tandem/core/status.h"
#include "tandem/core/thread_team.h"

namespace tandem::kernels::cpu {

/// Bytes a second at which a team reads memory that no cache holds: the best of a few sweeps.
core::Result<double> measure_read_rate(core::ThreadTeam& team);

}  // namespace tandem::kernels::cpu
