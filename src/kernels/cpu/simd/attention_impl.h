#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/simd/attention_block.h"
#include "tandem/kernels/cpu/simd/math.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

namespace tandem::kernels::cpu {

/// What attention over one block of keys does whatever the cache holds: the way through its pages,
/// the softmax, and the merge of its result into those of the blocks before it. Every sum has one
/// order (lanes_scalar.h).
template <typename L>
struct AttentionOf {
  using F32 = typename L::F32;

  /// [kPageTokens] behind the codes of a page.
  template <class Code>
  static const float* scales_of(const AttentionBlock& b, const Code* page) {
    return reinterpret_cast<const float*>(page + kPageTokens * b.head_size);
  }
  /// Fetches a line into the second-level cache. While a page is read, line by line, so is the page
  /// that comes next: hardware does not see where a page goes on, and takes most of a page to
  /// find its pace. Fetches of nearer lines, or into the first level, whose few misses they keep
  /// busy, reach half of what memory gives.
  TANDEM_INLINE static void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }
  template <class Code>
  static void fetch_scales(const AttentionBlock& b, const Code* page) {
    for (int i = 0; i < kPageTokens; i += kPanelRows) fetch(scales_of(b, page) + i);
  }

  static void merge_block(const float* block_out, float block_max, float block_sum, int n,
                          float* max, float* sum, float* out) {
    if (block_max == -__builtin_inff()) return;
    const Factors f = merge_state(block_max, block_sum, *max, *sum);
    for (int i = 0; i < n; i += 16) merge_values(L::load(block_out + i), f, out + i);
  }

  /// What merging a block does to a vector's running state.
  struct Merge {
    float keep[kMaxTileVectors];  // factor of the old sum; unused for the first block
    float take[kMaxTileVectors];  // factor of the block's sum; 0: no visible keys
    bool first[kMaxTileVectors];
  };

  /// Turns the scores of vector i into exp(score - max) and updates its max and sum.
  static void softmax(const AttentionBlock& b, int i, Merge& merge) {
    float* scores = b.scores + i * kBlockTokens;
    const int begin = b.first_page * kPageTokens;
    const int end = b.end_page * kPageTokens;
    if (b.key_begin[i] >= b.key_end[i]) {
      for (int j = begin; j < end; ++j) scores[j] = 0.0F;
      merge.first[i] = false;
      merge.keep[i] = 1.0F;
      merge.take[i] = 0.0F;
      return;
    }
    mask_scores(scores, begin, end, b.key_begin[i], b.key_end[i]);
    F32 top = L::load(scores + begin);
    for (int j = begin + 16; j < end; j += 16) top = L::max(L::load(scores + j), top);
    const float block_max = L::max_of(top);
    const F32 m = L::set1(block_max);
    F32 sums = L::set1(0.0F);
    for (int j = begin; j < end; j += 16) {
      const F32 p = Math<L>::exp(L::sub(L::load(scores + j), m));
      sums = L::add(sums, p);
      L::store(scores + j, p);
    }
    merge_sums(b, i, block_max, L::sum(sums), merge);
  }

  /// Adds the block's output of vector i to its running one.
  static void merge_vector(const AttentionBlock& b, int i, const Merge& merge) {
    if (b.key_begin[i] >= b.key_end[i]) return;
    const Factors f{merge.first[i], merge.keep[i], merge.take[i]};
    const int first = i * b.head_size;
    for (int d = first; d < first + b.head_size; d += 16) {
      merge_values(L::load(b.block_out + d), f, b.out + d);
    }
  }

 private:
  /// Scores outside of [begin, end) become -inf, whole tiles of the page range included.
  static void mask_scores(float* scores, int page_begin, int page_end, int begin, int end) {
    for (int j = page_begin; j < begin; ++j) scores[j] = -__builtin_inff();
    for (int j = end; j < page_end; ++j) scores[j] = -__builtin_inff();
  }

  static float exp1(float x) { return L::first_lane(Math<L>::exp(L::set1(x))); }

  static void merge_sums(const AttentionBlock& b, int i, float block_max, float block_sum,
                         Merge& merge) {
    const Factors f = merge_state(block_max, block_sum, b.max[i], b.sum[i]);
    merge.first[i] = f.first;
    merge.keep[i] = f.keep;
    merge.take[i] = f.take;
  }

  struct Factors {
    bool first;
    float keep;
    float take;
  };
  static Factors merge_state(float block_max, float block_sum, float& max, float& sum) {
    const float old_max = max;
    if (old_max == -__builtin_inff()) {
      max = block_max;
      sum = block_sum;
      return {true, 0.0F, 1.0F};
    }
    max = block_max > old_max ? block_max : old_max;
    const Factors f{false, exp1(old_max - max), exp1(block_max - max)};
    sum = __builtin_fmaf(block_sum, f.take, sum * f.keep);
    return f;
  }

  static void merge_values(F32 block, const Factors& f, float* out) {
    if (!f.first) {
      block = L::fma(block, L::set1(f.take), L::mul(L::load(out), L::set1(f.keep)));
    }
    L::store(out, block);
  }
};

}  // namespace tandem::kernels::cpu
