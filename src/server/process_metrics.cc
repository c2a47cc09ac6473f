#include "tandem/server/process_metrics.h"

#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <string>

namespace tandem::server {
namespace {

/// When this library was loaded, which is when the process began.
const double kStartTimeSeconds =
    std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();

double to_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

ProcessUsage process_usage() {
  ProcessUsage usage;
  usage.start_time_seconds = kStartTimeSeconds;
  std::ifstream status("/proc/self/status");
  std::string key;
  std::uint64_t kibibytes = 0;
  for (std::string line; status >> key;) {
    if (key == "VmRSS:" && status >> kibibytes) usage.resident_bytes = kibibytes * 1024;
    if (key == "VmHWM:" && status >> kibibytes) usage.peak_resident_bytes = kibibytes * 1024;
    std::getline(status, line);
  }
  rusage times = {};
  if (getrusage(RUSAGE_SELF, &times) == 0) {
    usage.cpu_seconds = to_seconds(times.ru_utime) + to_seconds(times.ru_stime);
  }
  return usage;
}

}  // namespace tandem::server
