#include <fmt/core.h>

#include "tandem/app/commands.h"
#include "tandem/core/print.h"

namespace tandem::app {

int fail(const core::Status& status) {
  core::print(stderr, fmt::format("tandem: {}\n", status.message()));
  return 1;
}

}  // namespace tandem::app
