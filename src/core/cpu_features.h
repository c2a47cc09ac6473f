#pragma once

#include <string>
#include <string_view>

namespace tandem::core {

/// Named sets of instructions that kernels are built for. Each level says what it takes.
enum class IsaLevel {
  kScalar,  ///< nothing beyond the build's baseline
  kAvx2,    ///< AVX2, FMA, F16C
  kAvx512,  ///< kAvx2 and AVX-512 F, BW, DQ, VL, VNNI
  kNeon,    ///< Armv8.2 with the dot product extension
};

/// "scalar", "avx2", "avx512", "neon".
std::string_view isa_name(IsaLevel level);

/// What this processor has and the operating system has enabled. Read once.
struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx512_base = false;  ///< F, BW, DQ and VL
  bool avx512_vnni = false;
  bool avx512_vbmi = false;
  bool avx512_bf16 = false;
  bool gfni = false;
  bool avx_vnni = false;
  bool amx_int8 = false;  ///< reported only, no kernel uses it
  bool neon_dotprod = false;
  std::string brand;  ///< as the processor names itself; empty if it does not
};

const CpuFeatures& cpu_features();

bool has_isa(IsaLevel level);

/// One line for logs, for example "AMD EPYC: avx2 fma f16c avx512 vnni vbmi bf16 gfni, 2 cores".
std::string describe_cpu();

}  // namespace tandem::core
