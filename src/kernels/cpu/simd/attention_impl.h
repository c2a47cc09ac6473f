#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/simd/math.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::kernels::cpu {

/// Attention over one block of keys. Each score is one fma chain over the head in ascending order
/// and each output one chain over the keys, so the tile sizes (V vectors x C columns of 16 lanes)
/// change the speed and never the bits. f16 is widened in registers, once per V vectors.
template <typename L>
struct AttentionOf {
  using F32 = typename L::F32;

  static void attend_block(const AttentionBlock& b) {
    if (b.num_vectors == 1) return attend<1>(b);
    if (b.num_vectors == 2) return attend<2>(b);
    if (b.num_vectors == 4) return attend<4>(b);
    if (b.num_vectors == 8) return attend<8>(b);
    if (b.num_vectors == 12) return attend<12>(b);
    __builtin_trap();
  }

  static void merge_block(const float* block_out, float block_max, float block_sum, int n,
                          float* max, float* sum, float* out) {
    if (block_max == -__builtin_inff()) return;
    const Factors f = merge_state(block_max, block_sum, *max, *sum);
    for (int i = 0; i < n; i += 16) merge_values(L::load(block_out + i), f, out + i);
  }

  /// What merging a block does to a vector's running state. From here on to merge_vector() also for
  /// the int8 cache.
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
  static constexpr int kTilesPerPage = kPageTokens / 16;
  static constexpr int kChunkTiles = kValueChunk / 16;
  /// Columns of 16 lanes that V vectors are multiplied with at a time: as many as leave the sums
  /// in registers, for with few sums the multipliers wait for each other.
  template <int V>
  static constexpr int columns_at_once() {
    const int fit = L::kSums / V;
    return fit >= 4 ? 4 : (fit >= 2 ? 2 : 1);
  }

  template <int V>
  static void attend(const AttentionBlock& b) {
    constexpr int C = columns_at_once<V>();
    int tile = b.first_page * kTilesPerPage;
    const int end = b.end_page * kTilesPerPage;
    for (; tile + C <= end; tile += C) score_tiles<V, C>(b, tile);
    if constexpr (C > kTilesPerPage) {
      for (; tile < end; tile += kTilesPerPage) score_tiles<V, kTilesPerPage>(b, tile);
    }
    Merge merge;
    for (int i = 0; i < V; ++i) softmax(b, i, merge);
    sum_values<V, C>(b);
    for (int i = 0; i < V; ++i) merge_vector(b, i, merge);
  }

  static const std::uint16_t* f16(const void* page) {
    return static_cast<const std::uint16_t*>(page);
  }
  /// Fetches a line into the second-level cache. While a page is read, line by line, so is the page
  /// that comes next: hardware does not see where a page goes on, and takes most of a page to
  /// find its pace. Fetches of nearer lines, or into the first level, whose few misses they keep
  /// busy, reach half of what memory gives.
  static void fetch(const std::uint16_t* p) { __builtin_prefetch(p, 0, 2); }

  /// fn<i, c>() for all sums of a tile. Unrolled here: the compiler's own unrolling comes too late
  /// to keep them in registers.
  template <int V, int C, class Fn>
  TANDEM_INLINE static void for_each_sum(Fn&& fn) {
    unroll(UpTo<V>(), [&]<int I>() TANDEM_INLINED {
      unroll(UpTo<C>(), [&]<int J>() TANDEM_INLINED { fn.template operator()<I, J>(); });
    });
  }

  /// acc[i][c] += factors[i * stride] * x[c].
  template <int V, int C>
  TANDEM_INLINE static void add_products(const float* factors, int stride, const F32 (&x)[C],
                                         F32 (&acc)[V][C]) {
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      acc[I][J] = L::fma(L::set1(factors[I * stride]), x[J], acc[I][J]);
    });
  }

  /// The page read after `page` of the keys, of which `pages` are read at once.
  static const std::uint16_t* after_keys(const AttentionBlock& b, int page, int pages) {
    if (page + pages < b.end_page) return f16(b.keys[page + pages]);
    const int value = b.first_page + page + pages - b.end_page;
    return f16(b.values[value < b.end_page ? value : b.first_page]);
  }

  /// Scores of C tiles of 16 keys, two of which make a page.
  template <int V, int C>
  static void score_tiles(const AttentionBlock& b, int tile) {
    constexpr int P = C < kTilesPerPage ? 1 : C / kTilesPerPage;
    const int page = tile / kTilesPerPage;
    const int first = C < kTilesPerPage ? tile % kTilesPerPage * 16 : 0;
    F32 acc[V][C];
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED { acc[I][J] = L::set1(0.0F); });
    const std::uint16_t* keys[P];
    const std::uint16_t* next[P];
    for (int p = 0; p < P; ++p) {
      keys[p] = f16(b.keys[page + p]) + first;
      next[p] = after_keys(b, page + p, P);
    }
    const float* q = b.queries;
    for (int d = 0; d < b.head_size; ++d, q += V) {
      F32 k[C];
      for (int c = 0; c < C; ++c)
        k[c] = L::load_f16(keys[c / kTilesPerPage] + c % kTilesPerPage * 16);
      add_products<V, C>(q, 1, k, acc);
      for (int p = 0; p < P; ++p) {
        keys[p] += kPageTokens;
        fetch(next[p] + d * kPageTokens);
      }
    }
    float* scores = b.scores + tile * 16;
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      L::store(scores + I * kBlockTokens + J * 16, acc[I][J]);
    });
  }

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

  /// block_out = sum of p * value over the block.
  template <int V, int C>
  static void sum_values(const AttentionBlock& b) {
    const int columns = b.head_size / 16;
    for (int page = b.first_page; page < b.end_page; ++page) {
      int column = 0;
      for (; column + C <= columns; column += C) sum_page<V, C>(b, page, column);
      for (; column < columns; ++column) sum_page<V, 1>(b, page, column);
    }
  }

  template <int V, int C>
  static void sum_page(const AttentionBlock& b, int page, int column) {
    float* out = b.block_out + column * 16;
    F32 acc[V][C];
    const bool is_first = page == b.first_page;
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      acc[I][J] = is_first ? L::set1(0.0F) : L::load(out + I * b.head_size + J * 16);
    });
    const int chunk = column / kChunkTiles;
    const int left = b.head_size / 16 - chunk * kChunkTiles;
    const int width = (left < kChunkTiles ? left : kChunkTiles) * 16;
    const int first = chunk * kChunkTiles * 16 * kPageTokens + column % kChunkTiles * 16;
    const std::uint16_t* values = f16(b.values[page]) + first;
    const std::uint16_t* next =
        f16(page + 1 < b.end_page ? b.values[page + 1] : b.next_keys) + first;
    const float* p = b.scores + page * kPageTokens;
    for (int j = 0; j < kPageTokens; ++j, values += width, next += width) {
      F32 v[C];
      for (int c = 0; c < C; ++c) v[c] = L::load_f16(values + c * 16);
      for (int c = 0; c < C; c += 2) fetch(next + c * 16);
      add_products<V, C>(p + j, kBlockTokens, v, acc);
    }
    for_each_sum<V, C>([&]<int I, int J>()
                           TANDEM_INLINED { L::store(out + I * b.head_size + J * 16, acc[I][J]); });
  }
};

}  // namespace tandem::kernels::cpu
