#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::core {

/// Element or block type of a tensor as it lies in a file. Block layouts: formats/quant_blocks.h.
enum class DType : std::uint8_t {
  kF32, kF16, kBF16, kF64,
  kI8, kI16, kI32, kI64, kU8, kBool,
  kF8E4M3, kF8E5M2,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0,
  kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K,
  kIQ4_NL, kIQ4_XS,
  kMXFP4, kNVFP4,
};

struct DTypeTraits {
  std::string_view name;      ///< as people write it: "Q4_K", "BF16"
  std::int32_t block_elements;  ///< elements of one block along the row; 1 for plain types
  std::int32_t block_bytes;     ///< bytes of one block
};

const DTypeTraits& traits(DType dtype);
inline std::string_view name(DType dtype) { return traits(dtype).name; }
inline bool is_block_quantized(DType dtype) { return traits(dtype).block_elements > 1; }

/// Bytes of a row of `elements`, which must be a multiple of the block's elements (CHECK).
std::size_t row_bytes(DType dtype, std::int64_t elements);

}  // namespace tandem::core
