#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tandem/core/dtype.h"

namespace tandem::formats {

/// Value types of GGUF metadata, numbered as in the file.
enum GgufType : std::uint32_t {
  kGgufU8,
  kGgufI8,
  kGgufU16,
  kGgufI16,
  kGgufU32,
  kGgufI32,
  kGgufF32,
  kGgufBool,
  kGgufString,
  kGgufArray,
  kGgufU64,
  kGgufI64,
  kGgufF64,
  kNumGgufTypes,
};

struct GgufTypeTraits {
  std::string_view name;
  std::uint32_t bytes;  ///< of one value; 0: of variable length
};

inline constexpr std::array<GgufTypeTraits, kNumGgufTypes> kGgufTypes = {{
    {"u8", 1},
    {"i8", 1},
    {"u16", 2},
    {"i16", 2},
    {"u32", 4},
    {"i32", 4},
    {"f32", 4},
    {"bool", 1},
    {"string", 0},
    {"array", 0},
    {"u64", 8},
    {"i64", 8},
    {"f64", 8},
}};

struct GgufTensorType {
  std::uint32_t id;
  std::string_view name;
  std::optional<core::DType> dtype;  ///< none: Tandem does not read it
};

/// Tensor types by their number in the file; the numbers left out were never assigned.
inline constexpr GgufTensorType kGgufTensorTypes[] = {
    {0, "F32", core::DType::kF32},
    {1, "F16", core::DType::kF16},
    {2, "Q4_0", core::DType::kQ4_0},
    {3, "Q4_1", core::DType::kQ4_1},
    {6, "Q5_0", core::DType::kQ5_0},
    {7, "Q5_1", core::DType::kQ5_1},
    {8, "Q8_0", core::DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", core::DType::kQ2_K},
    {11, "Q3_K", core::DType::kQ3_K},
    {12, "Q4_K", core::DType::kQ4_K},
    {13, "Q5_K", core::DType::kQ5_K},
    {14, "Q6_K", core::DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", core::DType::kIQ4_NL},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", core::DType::kIQ4_XS},
    {24, "I8", core::DType::kI8},
    {25, "I16", core::DType::kI16},
    {26, "I32", core::DType::kI32},
    {27, "I64", core::DType::kI64},
    {28, "F64", core::DType::kF64},
    {29, "IQ1_M", {}},
    {30, "BF16", core::DType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", core::DType::kMXFP4},
    {40, "NVFP4", core::DType::kNVFP4},
    {41, "Q1_0", {}},
    {42, "Q2_0", {}},
};

}  // namespace tandem::formats
