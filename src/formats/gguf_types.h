#pragma once

#include <array>
#include <cstdint>
#include <string_view>

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

}  // namespace tandem::formats
