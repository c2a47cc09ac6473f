#pragma once

#include <chrono>
#include <string>

#include "program.h"

namespace tandem::app {

constexpr std::chrono::seconds kPatience{60};  // sanitizers on a busy machine

/// Waits until a program that was started as `serve` listens and has loaded; its base URL.
std::string wait_until_ready(const Program& program);

}  // namespace tandem::app
