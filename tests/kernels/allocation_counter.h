#pragma once

namespace tandem::test {

/// Calls of the global operator new so far, in an executable that links allocation_counter.cc.
long num_allocations();

}  // namespace tandem::test
