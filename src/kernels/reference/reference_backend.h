#pragma once

#include <memory>

#include "tandem/kernels/backend.h"

namespace tandem::kernels {

/// The oracle: every operation in plain scalar f32, weights dequantized to f32, f32 KV cache, sums
/// in index order, one thread. Clear before fast; any shape. Batch-invariant by construction.
std::unique_ptr<Backend> make_reference_backend();

}  // namespace tandem::kernels
