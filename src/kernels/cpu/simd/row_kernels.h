#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::kernels::cpu {

/// Largest value of a row and where it is; the lowest index on ties.
struct RowMax {
  float value = 0.0F;
  std::int32_t index = -1;
};

/// Most query vectors of one AttentionBlock.
inline constexpr int kMaxTileVectors = 12;

/// Attention of a few query vectors over one block of kBlockTokens keys by absolute position.
/// The state (max, sum, out) runs over the blocks of a vector in ascending order.
struct AttentionBlock {
  int head_size = 0;                    ///< D, a multiple of 16
  int num_vectors = 0;                  ///< 1, 2, 4, 8 or 12
  const float* queries = nullptr;       ///< [D][num_vectors]
  const void* const* keys = nullptr;    ///< per page of the block; kv_layout.h
  const void* const* values = nullptr;  ///< per page
  const void* next_keys = nullptr;      ///< page read after this block
  int first_page = 0;                   ///< pages [first_page, end_page) hold all visible keys
  int end_page = 0;
  const std::int32_t* key_begin = nullptr;  ///< [num_vectors] visible keys of the block,
  const std::int32_t* key_end = nullptr;    ///< counted from its first position
  float* max = nullptr;                     ///< [num_vectors] -inf before the first block
  float* sum = nullptr;                     ///< [num_vectors]
  float* out = nullptr;                     ///< [num_vectors][D] sum of exp(score - max) * value
  float* block_out = nullptr;               ///< scratch [num_vectors][D]
  float* scores = nullptr;                  ///< scratch [num_vectors][kBlockTokens]
};

/// The elementwise work of a forward pass for one instruction set. Every set gives the same bits:
/// sixteen virtual lanes, one order of sums. n is any positive count unless said otherwise.
struct RowKernels {
  std::string_view isa;
  int max_vectors = 0;  ///< of one AttentionBlock, for speed

  /// out = x / sqrt(mean(x^2) + eps) * weight (null: 1). Returns sum(x^2). out may be x.
  float (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
  /// x = (x + rms(y) * weight) * scale.
  void (*add_rms_norm)(const float* y, const float* weight, int n, float eps, float scale,
                       float* x);
  /// out = x * scale; out may be x.
  void (*scale)(const float* x, float scale, int n, float* out);
  /// out = gelu_tanh(gate) * up; out may be one of the inputs.
  void (*gelu_mul)(const float* gate, const float* up, int n, float* out);
  /// x = (rms(x * x_scale) * weight + table * table_scale) * 2^-0.5: spec/model.md section 4.
  void (*ple_combine)(const float* table, const float* weight, int n, float eps, float x_scale,
                      float table_scale, float* x);
  /// cosine[i], sine[i] of angle position * frequency[i], i < n.
  void (*rope_table)(std::int32_t position, const float* frequency, int n, float* cosine,
                     float* sine);
  /// Rotates the pairs (i, i + n / 2) of x [n], i < pairs, in place. n is a multiple of 16.
  void (*rope)(float* x, int n, const float* cosine, const float* sine, int pairs);
  /// x = cap * tanh(x / cap).
  void (*softcap)(float* x, int n, float cap);
  RowMax (*argmax)(const float* x, int n);
  /// True when |x| <= largest for every value (a value within one rounding of `largest` may count
  /// either way) and none is NaN.
  bool (*all_within)(const float* x, int n, float largest);
  /// Writes a key [n] into column `token` of its page f16 [n][32], rounding to nearest even.
  void (*store_key)(const float* x, int n, std::uint16_t* page, int token);
  /// Writes a value [n] as position `token` of its page f16 (kv_layout.h).
  void (*store_value)(const float* x, int n, std::uint16_t* page, int token);
  void (*attend_block)(const AttentionBlock& block);
  /// Merges the state of a later block into a running state, as attend_block does: a partial of
  /// max -inf changes nothing, a running max of -inf takes the partial as it is. out: [n].
  void (*merge_block)(const float* block_out, float block_max, float block_sum, int n, float* max,
                      float* sum, float* out);
  /// Elementary functions over n values, for tests: out may be x.
  void (*exp)(const float* x, int n, float* out);
  void (*tanh)(const float* x, int n, float* out);
};

/// The table of an instruction set ("scalar", "avx2", "avx512", "neon"); null if not built in.
/// Whether the machine can run it is the caller's question.
const RowKernels* row_kernels(std::string_view isa);

}  // namespace tandem::kernels::cpu
