#include <cmath>
#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/attention_block.h"
#include "tandem/kernels/cpu/simd/attention_impl.h"
#include "tandem/kernels/cpu/simd/lanes_scalar.h"

// The definition of attention over an int8 cache in plain code; all other instruction sets give
// these bits.

namespace tandem::kernels::cpu {
namespace {

using Float = AttentionOf<ScalarLanes>;

/// One step of a chain: 32 columns of a row of a panel, `lane` being its first 4 codes.
float add_group(const std::uint8_t* lane, const CodeGroup& a, float acc) {
  std::int32_t sum = 0;
  for (int k = 0; k < 32; ++k) {
    sum += (lane[k / 4 * kVectorBytes + k % 4] - kInt8Offset) * a.codes[k];
  }
  return std::fma(a.scale, static_cast<float>(sum), acc);
}

void score_page(const Int8AttentionBlock& b, int i, int page) {
  const auto* codes = static_cast<const std::uint8_t*>(b.keys[page]);
  const float* scales = Float::scales_of(b, codes);
  const int groups = b.head_size / 32;
  for (int j = 0; j < kPageTokens; ++j) {
    const std::uint8_t* lane =
        codes + j / kPanelRows * kPanelRows * b.head_size + j % kPanelRows * 4;
    float score = 0.0F;
    for (int g = 0; g < groups; ++g) {
      score = add_group(lane + g * 8 * kVectorBytes, b.queries[i * groups + g], score);
    }
    b.scores[i * kBlockTokens + page * kPageTokens + j] = score * scales[j];
  }
}

void sum_page(const Int8AttentionBlock& b, int i, int page) {
  const auto* codes = static_cast<const std::uint8_t*>(b.values[page]);
  const float* scales = Float::scales_of(b, codes);
  float weights[kPageTokens];
  for (int j = 0; j < kPageTokens; ++j) {
    weights[j] = b.scores[i * kBlockTokens + page * kPageTokens + j] * scales[j];
  }
  CodeGroup group;
  kScalarKernels.quantize_row(weights, kPageTokens, &group);
  float* out = b.block_out + i * b.head_size;
  for (int d = 0; d < b.head_size; ++d) {
    const std::uint8_t* lane =
        codes + d / kPanelRows * kPanelRows * kPageTokens + d % kPanelRows * 4;
    out[d] = add_group(lane, group, page == b.first_page ? 0.0F : out[d]);
  }
}

}  // namespace

void attend_int8_scalar(const Int8AttentionBlock& b) {
  Float::Merge merge;
  for (int i = 0; i < b.num_vectors; ++i) {
    for (int page = b.first_page; page < b.end_page; ++page) score_page(b, i, page);
    Float::softmax(b, i, merge);
    for (int page = b.first_page; page < b.end_page; ++page) sum_page(b, i, page);
    Float::merge_vector(b, i, merge);
  }
}

}  // namespace tandem::kernels::cpu
