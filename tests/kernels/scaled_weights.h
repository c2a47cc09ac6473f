#pragma once

#include <cstdint>
#include <vector>

#include "tandem/kernels/weight.h"

/// Random weights that carry scales.
namespace tandem::test {

/// A weight view with its bytes.
struct OwnedWeight {
  std::vector<std::byte> bytes;
  std::vector<std::byte> scales;
  kernels::WeightView view;
};

/// Normal values with the given root mean square in F8_E4M3, with bf16 scales for blocks of
/// [scale_rows, scale_cols] that put the largest value of a block at 448 (FP8-Dynamic: 1, cols).
OwnedWeight random_e4m3(int rows, int cols, int scale_rows, int scale_cols, int e4m3_group,
                        std::uint32_t seed, float rms);

/// Random pairs of E2M1 codes (U8) with an E4M3 scale for each 16 columns and a factor that gives
/// about the root mean square.
OwnedWeight random_nvfp4(int rows, int cols, std::uint32_t seed, float rms);

}  // namespace tandem::test
