#pragma once

#include <memory>

#include "tandem/kernels/backend.h"

namespace tandem::app {

/// A backend that packs nothing and runs nothing: loading a model with it checks that every tensor
/// is there with the right shape and a type that can be decoded, without reading the weights.
std::unique_ptr<kernels::Backend> make_dry_run_backend();

}  // namespace tandem::app
