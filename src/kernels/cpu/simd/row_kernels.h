#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tandem/kernels/cpu/simd/attention_block.h"

namespace tandem::kernels::cpu {

/// Largest value of a row and where it is; the lowest index on ties.
struct RowMax {
  float value = 0.0F;
  std::int32_t index = -1;
};

/// Writes a key or value [n] of finite values as position `token` of its page (kv_layout.h): codes
/// rounded to nearest even and their scale. n is a multiple of 16 or, with 8 bits, of 32.
struct KvWriter {
  void (*key)(const float* x, int n, std::byte* page, int token);
  void (*value)(const float* x, int n, std::byte* page, int token);
};

/// The elementwise work of a forward pass for one instruction set. Every set gives the same bits:
/// sixteen virtual lanes, one order of sums. n is any positive count unless said otherwise.
struct RowKernels {
  std::string_view isa;
  int max_vectors = 0;  ///< of one Int16AttentionBlock, for speed

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
  bool (*all_finite)(const float* x, int n);
  KvWriter int16;
  KvWriter int8;
  /// Writes the codes of a query x[n], as those of a 16-bit key, in pairs that lie `stride` codes
  /// apart; returns what they are to be multiplied with. A value that is no finite number makes all
  /// codes 0 and gives NaN. n is a multiple of 16.
  float (*encode_query)(const float* x, int n, std::int16_t* pair, int stride);
  void (*attend_int16)(const Int16AttentionBlock& block);
  /// Merges the state of a later block into a running state, as attention does: a partial of
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
