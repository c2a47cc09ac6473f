#pragma once

#include <chrono>

namespace tandem::app {

/// SIGTERM, SIGINT and, unless the parent ignores it (nohup), SIGHUP as something to wait for. They
/// are blocked in the thread that makes this and in every thread started from then on, so make it
/// first. Thread: the one that made it.
class StopSignals {
 public:
  StopSignals();

  /// Waits up to `time` for a signal; true when one came. From then on the next one ends the
  /// process at once, with exit code 1.
  bool wait_for(std::chrono::milliseconds time);
};

/// Ends the process with a sentence, exit code 1, when a mapped file loses the pages that are read
/// (SIGBUS): somebody truncated it or wrote another over it.
void explain_lost_files();

}  // namespace tandem::app
