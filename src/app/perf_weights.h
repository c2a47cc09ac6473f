#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tandem/kernels/weight.h"

namespace tandem::app {

/// A weight of random values for measurements: sums of products with it stay near 1. Zeros would
/// run faster than any real weight on some devices.
struct RandomWeight {
  std::vector<std::byte> bytes, scales;
  kernels::WeightView view;  ///< into both
};

/// Forms in which weights are measured: Q4_K, Q6_K, Q8_0, BF16, FP8 (FP8-Dynamic) and NVFP4.
enum class WeightForm : std::uint8_t { kQ4_K, kQ6_K, kQ8_0, kBF16, kFp8, kNvfp4 };
std::string_view name(WeightForm form);

/// [rows, cols]; cols is a multiple of 256, or for BF16 anything.
RandomWeight random_weight(WeightForm form, int rows, int cols);

}  // namespace tandem::app
