#include <fmt/core.h>

#include "tandem/app/commands.h"

namespace tandem::app {

int fail(const core::Status& status) {
  fmt::print(stderr, "tandem: {}\n", status.message());
  return 1;
}

}  // namespace tandem::app
