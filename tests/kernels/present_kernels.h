#pragma once

#include <vector>

#include "tandem/core/cpu_features.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::test {

/// Row kernels of every instruction set of this machine, the plain code first.
inline std::vector<const kernels::cpu::RowKernels*> present_kernels() {
  using core::IsaLevel;
  std::vector<const kernels::cpu::RowKernels*> list;
  for (const IsaLevel level :
       {IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kNeon}) {
    if (core::has_isa(level)) list.push_back(kernels::cpu::row_kernels(core::isa_name(level)));
  }
  return list;
}

}  // namespace tandem::test
