#include "tandem/bench/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tandem/core/print.h"

namespace tandem::bench {
namespace {

constexpr int kBarWidth = 24;
constexpr double kPlainInterval_s = 10.0;

std::string clock_text(double seconds) {
  const int total = static_cast<int>(seconds + 0.5);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

/// One that can clear the rest of a line.
bool is_terminal(int stream) {
  const char* name = std::getenv("TERM");
  return ::isatty(stream) != 0 && name != nullptr && std::string_view(name) != "dumb";
}

}  // namespace

std::string progress_line(const ProgressState& state) {
  const int answered = state.done + state.errors;
  const double share_of_prompts = state.prompts > 0 ? 1.0 * answered / state.prompts : 0.0;
  const double share_of_time = state.duration_s > 0.0 ? state.elapsed_s / state.duration_s : 0.0;
  const double share = std::clamp(std::max(share_of_prompts, share_of_time), 0.0, 1.0);
  const int filled = static_cast<int>(share * kBarWidth);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(kBarWidth - filled), '.');
  const double rate = state.elapsed_s > 0.0 ? state.completion_tokens / state.elapsed_s : 0.0;
  std::string line =
      fmt::format("[{}] {}/{} done, {} running, {} errors, {:.0f} tok/s, {}", bar, state.done,
                  state.prompts, state.running, state.errors, rate, clock_text(state.elapsed_s));
  if (share > 0.01 && share < 1.0) {
    line += fmt::format(" (about {} left)", clock_text(state.elapsed_s * (1.0 - share) / share));
  }
  return line;
}

Progress::Progress() : is_terminal_(is_terminal(STDERR_FILENO)) {}

void Progress::show(const ProgressState& state) {
  if (is_terminal_) {
    core::print(stderr, fmt::format("\r{}\x1b[K",
                                    progress_line(state)));  // the escape clears the line's rest
    is_line_open_ = true;
  } else if (state.elapsed_s >= next_line_at_s_) {
    core::print(stderr, fmt::format("{}\n", progress_line(state)));
    next_line_at_s_ = state.elapsed_s + kPlainInterval_s;
  }
  std::fflush(stderr);
}

void Progress::finish() {
  if (is_line_open_) core::print(stderr, "\n");
  is_line_open_ = false;
}

}  // namespace tandem::bench
