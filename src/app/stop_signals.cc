#include "tandem/app/stop_signals.h"

#include <unistd.h>
#include <csignal>
#include <ctime>

namespace tandem::app {
namespace {

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

extern "C" void exit_at_once(int) {
  ::_exit(1);
}

}  // namespace

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
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return true;
}

}  // namespace tandem::app
