#pragma once

#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"

namespace tandem::model {

/// What a backend must know of a target and its drafter (null: none): sizes, caches, rotations and
/// the largest products. Sequences, rows and memory are the caller's to fill in.
kernels::Geometry geometry_of(const ModelConfig& target, const ModelConfig* drafter);

}  // namespace tandem::model
