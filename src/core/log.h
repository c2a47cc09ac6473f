#pragma once

#include <string_view>

namespace tandem::core {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// One line on standard error with time and level; formatting is the caller's (fmt::format).
/// Never log prompt or output text. Thread: any.
void log(LogLevel level, std::string_view message);
void set_log_level(LogLevel minimum);

inline void log_info(std::string_view message) { log(LogLevel::kInfo, message); }
inline void log_warning(std::string_view message) { log(LogLevel::kWarning, message); }
inline void log_error(std::string_view message) { log(LogLevel::kError, message); }

}  // namespace tandem::core
