#include "tandem/app/stop_signals.h"

#include <unistd.h>

#include <csignal>
#include <ctime>
#include <string_view>

namespace tandem::app {
namespace {

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action = {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

[[noreturn]] void exit_with(std::string_view message) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, message.data(), message.size());
  ::_exit(1);
}

extern "C" void exit_at_once(int) {
  exit_with("tandem: stopped at once by a second signal\n");
}

extern "C" void exit_for_lost_file(int) {
  exit_with(
      "tandem: a model file became shorter while it was in use; put a new file in place by "
      "renaming "
      "it, then start again\n");
}

}  // namespace

void explain_lost_files() {
  struct sigaction action = {};
  action.sa_handler = exit_for_lost_file;
  ::sigaction(SIGBUS, &action, nullptr);
}

StopSignals::StopSignals() {
  const sigset_t set = stop_set();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

bool StopSignals::wait_for(std::chrono::milliseconds time) {
  const sigset_t set = stop_set();
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(time.count() / 1000);
  timeout.tv_nsec = static_cast<long>(time.count() % 1000) * 1'000'000;
  if (::sigtimedwait(&set, nullptr, &timeout) < 0) return false;  // timed out or interrupted
  struct sigaction action = {};
  action.sa_handler = exit_at_once;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    if (sigismember(&set, signal) == 1) ::sigaction(signal, &action, nullptr);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return true;
}

}  // namespace tandem::app
