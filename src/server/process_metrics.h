#pragma once

#include <cstdint>

namespace tandem::server {

/// What the operating system says about this process; 0 where it does not say.
struct ProcessUsage {
  std::uint64_t resident_bytes = 0;
  std::uint64_t peak_resident_bytes = 0;
  double cpu_seconds = 0;
  double start_time_seconds = 0;  ///< Unix time
};
ProcessUsage process_usage();

}  // namespace tandem::server
