#pragma once

#include <cstdio>
#include <cstdlib>

namespace tandem::core {

/// Prints the failed condition and ends the process. For programmer errors only: whatever comes
/// from outside (file, request, socket, device) is answered with a Status.
[[noreturn]] inline void check_failed(const char* file, int line, const char* condition,
                                      const char* message) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, condition, message);
  std::abort();
}

}  // namespace tandem::core

/// Ends the process unless the condition holds, in every build.
#define TANDEM_CHECK(condition, message)                                          \
  do {                                                                            \
    if (!(condition)) [[unlikely]] {                                              \
      ::tandem::core::check_failed(__FILE__, __LINE__, #condition, (message));    \
    }                                                                             \
  } while (false)
