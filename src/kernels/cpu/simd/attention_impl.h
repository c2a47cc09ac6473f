#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/simd/math.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::kernels::cpu {

/// Attention over one block of keys. Each score is one fma chain over the head in ascending order
/// and each output one chain over the keys, so the tile sizes (V vectors x C columns of 16 lanes)
/// change the speed and never the bits. f16 is widened in registers, once per V vectors.
template <typename L>
struct AttentionOf {
  using F32 = typename L::F32;

  static void attend_block(const AttentionBlock& b) {
    switch (b.num_vectors) {
      case 1:
        return attend<1, 4>(b);
      case 2:
        return attend<2, 4>(b);
      case 4:
        return attend<4, 2>(b);
      case 8:
        return attend_many<8>(b);
      case 12:
        return attend_many<12>(b);
      default:
        __builtin_trap();
    }
  }

  static void merge_block(const float* block_out, float block_max, float block_sum, int n,
                          float* max, float* sum, float* out) {
    if (block_max == -__builtin_inff()) return;
    const Factors f = merge_state(block_max, block_sum, *max, *sum);
    for (int i = 0; i < n; i += 16) merge_values(L::load(block_out + i), f, out + i);
  }

 private:
  static constexpr int kTilesPerPage = kPageTokens / 16;

  template <int V>
  static void attend_many(const AttentionBlock& b) {
    if constexpr (V <= L::kMaxVectors) attend<V, 2>(b);
  }

  /// What merging a block does to a vector's running state.
  struct Merge {
    float keep[L::kMaxVectors];  // factor of the old sum; unused for the first block
    float take[L::kMaxVectors];  // factor of the block's sum; 0: no visible keys
    bool first[L::kMaxVectors];
  };

  template <int V, int C>
  static void attend(const AttentionBlock& b) {
    int tile = b.first_page * kTilesPerPage;
    const int end_tile = b.end_page * kTilesPerPage;
    for (; tile + C <= end_tile; tile += C) score_tiles<V, C>(b, tile);
    if constexpr (C > kTilesPerPage) {
      for (; tile < end_tile; tile += kTilesPerPage) score_tiles<V, kTilesPerPage>(b, tile);
    }

    Merge merge;
    for (int i = 0; i < V; ++i) softmax(b, i, merge);

    int column = 0;
    const int columns = b.head_size / 16;
    for (; column + C <= columns; column += C) sum_values<V, C>(b, column, merge);
    for (; column < columns; ++column) sum_values<V, 1>(b, column, merge);
  }

  /// Tile t of the pages [2][D][16]; pages past the end stand for the last one.
  static const std::uint16_t* tile_of(const std::uint16_t* const* pages, const AttentionBlock& b,
                                      int t) {
    const int page = t / kTilesPerPage < b.end_page ? t / kTilesPerPage : b.end_page - 1;
    return pages[page] + static_cast<std::int64_t>(t % kTilesPerPage) * b.head_size * 16;
  }

  /// Scores of C tiles. Meanwhile their values and the keys of the tiles after them are fetched
  /// into L2, line for line; sum_values does the same for the keys of the block after this one. So
  /// the cache is read at an even rate, and in an order that hardware does not foresee.
  template <int V, int C>
  static void score_tiles(const AttentionBlock& b, int tile) {
    const std::uint16_t* keys[C];
    const std::uint16_t* next[C];
    const std::uint16_t* values[C];
    for (int c = 0; c < C; ++c) {
      keys[c] = tile_of(b.keys, b, tile + c);
      next[c] = tile_of(b.keys, b, tile + C + c);
      values[c] = tile_of(b.values, b, tile + c);
    }
    F32 acc[V][C];
    for (int i = 0; i < V; ++i) {
      for (int c = 0; c < C; ++c) acc[i][c] = L::set1(0.0F);
    }
    const float* q = b.queries;
    for (int d = 0; d < b.head_size; d += 2) {
      for (int c = 0; c < C; ++c) {
        __builtin_prefetch(next[c] + d * 16, 0, 2);
        __builtin_prefetch(values[c] + d * 16, 0, 2);
      }
      for (int step = 0; step < 2; ++step, q += V) {
        F32 k[C];
        for (int c = 0; c < C; ++c) k[c] = L::load_f16(keys[c] + (d + step) * 16);
        for (int i = 0; i < V; ++i) {
          const F32 qi = L::set1(q[i]);
          for (int c = 0; c < C; ++c) acc[i][c] = L::fma(qi, k[c], acc[i][c]);
        }
      }
    }
    for (int i = 0; i < V; ++i) {
      for (int c = 0; c < C; ++c) {
        L::store(b.scores + i * kBlockTokens + (tile + c) * 16, acc[i][c]);
      }
    }
  }

  /// Scores outside of [begin, end) become -inf, whole tiles of the page range included.
  static void mask_scores(float* scores, int page_begin, int page_end, int begin, int end) {
    for (int j = page_begin; j < begin; ++j) scores[j] = -__builtin_inff();
    for (int j = end; j < page_end; ++j) scores[j] = -__builtin_inff();
  }

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

  template <int V, int C>
  static void sum_values(const AttentionBlock& b, int column, const Merge& merge) {
    F32 acc[V][C];
    for (int i = 0; i < V; ++i) {
      for (int c = 0; c < C; ++c) acc[i][c] = L::set1(0.0F);
    }
    for (int page = b.first_page; page < b.end_page; ++page) {
      const std::uint16_t* values = b.values[page] + column * kPageTokens * 16;
      const std::uint16_t* next = b.next_keys[page] + column * kPageTokens * 16;
      const float* p = b.scores + page * kPageTokens;
      for (int j = 0; j < kPageTokens; ++j) {
        for (int c = 0; c < C; c += 2) __builtin_prefetch(next + (j * C + c) * 16, 0, 2);
        F32 v[C];
        for (int c = 0; c < C; ++c) v[c] = L::load_f16(values + (c * kPageTokens + j) * 16);
        for (int i = 0; i < V; ++i) {
          const F32 pi = L::set1(p[i * kBlockTokens + j]);
          for (int c = 0; c < C; ++c) acc[i][c] = L::fma(pi, v[c], acc[i][c]);
        }
      }
    }
    for (int i = 0; i < V; ++i) {
      if (merge.take[i] == 0.0F && !merge.first[i] && merge.keep[i] == 1.0F) continue;
      float* out = b.out + static_cast<std::int64_t>(i) * b.head_size + column * 16;
      const Factors f{merge.first[i], merge.keep[i], merge.take[i]};
      for (int c = 0; c < C; ++c) merge_values(acc[i][c], f, out + c * 16);
    }
  }
};

}  // namespace tandem::kernels::cpu
