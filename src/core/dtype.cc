#include "tandem/core/dtype.h"

#include <array>

#include "tandem/core/check.h"

namespace tandem::core {
namespace {

constexpr std::array<DTypeTraits, 26> kTraits = {{
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"F64", 1, 8},
    {"I8", 1, 1},       {"I16", 1, 2},      {"I32", 1, 4},      {"I64", 1, 8},
    {"U8", 1, 1},       {"BOOL", 1, 1},     {"F8_E4M3", 1, 1},  {"F8_E5M2", 1, 1},
    {"Q4_0", 32, 18},   {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},   {"Q2_K", 256, 84},  {"Q3_K", 256, 110}, {"Q4_K", 256, 144},
    {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18}, {"IQ4_XS", 256, 136},
    {"MXFP4", 32, 17},  {"NVFP4", 64, 36},
}};
static_assert(kTraits.size() == static_cast<std::size_t>(DType::kNVFP4) + 1);

}  // namespace

const DTypeTraits& traits(DType dtype) { return kTraits[static_cast<std::size_t>(dtype)]; }

std::size_t row_bytes(DType dtype, std::int64_t elements) {
  const DTypeTraits& t = traits(dtype);
  TANDEM_CHECK(elements % t.block_elements == 0, "a row must hold whole blocks");
  return static_cast<std::size_t>(elements / t.block_elements) *
         static_cast<std::size_t>(t.block_bytes);
}

}  // namespace tandem::core
