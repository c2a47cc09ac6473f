#pragma once

#include <cstdint>

namespace tandem::kernels::cpu {

/// Writes a key [n] as position `token` of its int8 page (kv_layout.h): codes rounded to nearest
/// even and their scale, the largest magnitude / 127. Every value is finite; n is a multiple of 32.
void store_key_int8(const float* x, int n, std::uint8_t* page, int token);
/// The same for a value.
void store_value_int8(const float* x, int n, std::uint8_t* page, int token);

}  // namespace tandem::kernels::cpu
