#pragma once

#include <functional>
#include <memory>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"

namespace tandem::app {

using MakeBackend = std::function<core::Result<std::unique_ptr<kernels::Backend>>()>;

/// Runs every shape of attention that a target and its drafter (null: none) have on a backend of
/// its own, a few rows with random weights, and compares with the reference: kInternal, a sentence
/// that names the shape, where they differ. Some tenths of a second. (Products are compared when
/// their weights are packed, where the device has a schedule to choose.)
core::Status check_attention(const MakeBackend& make, const model::ModelConfig& target,
                             const model::ModelConfig* drafter);

}  // namespace tandem::app
