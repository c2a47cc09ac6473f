#pragma once

#include <memory>

#include "tandem/kernels/backend.h"

namespace tandem::kernels {

/// The oracle: every operation in plain f32, weights dequantized to f32 when packed, f32 KV cache,
/// keys in ascending order, dot products in 16 partial sums of fixed order
/// (reference/reference_ops.h), one thread. Clear before fast; any shape. Batch-invariant by
/// construction: no operation looks at two rows at once, but for K and V.
std::unique_ptr<Backend> make_reference_backend();

}  // namespace tandem::kernels
