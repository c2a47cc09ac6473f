#pragma once

#include <string>

namespace tandem::bench {

struct ProgressState {
  double elapsed_s = 0.0, duration_s = 0.0;
  int done = 0, prompts = 0, running = 0, errors = 0;
  double completion_tokens = 0.0;  ///< of completed requests
};

/// The run's state on one line: bar, requests, errors, tokens per second, time left.
std::string progress_line(const ProgressState& state);

/// Shows progress on standard error: one line that is rewritten on a terminal, else a plain line
/// every ten seconds.
class Progress {
 public:
  Progress();
  void show(const ProgressState& state);
  /// Ends the rewritten line.
  void finish();

 private:
  bool is_terminal_;
  bool is_line_open_ = false;
  double next_line_at_s_ = 0.0;
};

}  // namespace tandem::bench
