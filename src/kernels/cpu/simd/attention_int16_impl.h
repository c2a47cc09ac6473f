#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/simd/attention_block.h"
#include "tandem/kernels/cpu/simd/attention_impl.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

namespace tandem::kernels::cpu {

/// Attention over one block of a 16-bit cache. Sums of products are exact integers, so the tile
/// sizes (V vectors x C columns of 16 lanes) change the speed and never the bits.
template <typename L>
struct Int16Attention {
  using F32 = typename L::F32;
  using I32 = typename L::I32;
  using I16 = typename L::I16;
  using Float = AttentionOf<L>;

  static void attend(const Int16AttentionBlock& b) {
    if (b.num_vectors == 1) return attend<1>(b);
    if (b.num_vectors == 2) return attend<2>(b);
    if (b.num_vectors == 4) return attend<4>(b);
    if (b.num_vectors == 8) return attend<8>(b);
    if (b.num_vectors == 12) return attend<12>(b);
    __builtin_trap();
  }

 private:
  static constexpr int kTilesPerPage = kPageTokens / 16;
  /// Codes of 16 lanes: a register of pairs.
  static constexpr int kTileCodes = 32;
  static constexpr int kChunkColumns = kValueChunk / 16;

  /// Columns of 16 lanes that V vectors are multiplied with at a time: as many as leave the sums
  /// in registers, for with few sums the multipliers wait for each other.
  template <int V>
  static constexpr int columns_at_once() {
    const int fit = L::kSums / V;
    return fit >= 4 ? 4 : (fit >= 2 ? 2 : 1);
  }

  template <int V>
  static void attend(const Int16AttentionBlock& b) {
    constexpr int C = columns_at_once<V>();
    int tile = b.first_page * kTilesPerPage;
    const int end = b.end_page * kTilesPerPage;
    for (; tile + C <= end; tile += C) score_tiles<V, C>(b, tile);
    if constexpr (C > kTilesPerPage) {
      for (; tile < end; tile += kTilesPerPage) score_tiles<V, kTilesPerPage>(b, tile);
    }
    typename Float::Merge merge;
    float units[V];
    for (int i = 0; i < V; ++i) {
      Float::softmax(b, i, merge);
      units[i] = round_weights(b, i);
    }
    sum_values<V, C>(b, units);
    for (int i = 0; i < V; ++i) Float::merge_vector(b, i, merge);
  }

  static const std::int16_t* codes_of(const void* page) {
    return static_cast<const std::int16_t*>(page);
  }

  /// fn<i, c>() for all sums of a tile. Unrolled here: the compiler's own unrolling comes too late
  /// to keep them in registers.
  template <int V, int C, class Fn>
  TANDEM_INLINE static void for_each_sum(Fn&& fn) {
    unroll(UpTo<V>(), [&]<int I>() TANDEM_INLINED {
      unroll(UpTo<C>(), [&]<int J>() TANDEM_INLINED { fn.template operator()<I, J>(); });
    });
  }

  /// acc[i][c] += the products of pair factors[i * stride] with x[c].
  template <int V, int C>
  TANDEM_INLINE static void add_products(const std::int16_t* factors, int stride, const I16 (&x)[C],
                                         I32 (&acc)[V][C]) {
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      acc[I][J] = L::dot_pairs(acc[I][J], x[J], L::broadcast_pair(factors + I * stride));
    });
  }

  /// The page read after `page` of the keys, of which `pages` are read at once.
  static const std::int16_t* after_keys(const AttentionBlock& b, int page, int pages) {
    if (page + pages < b.end_page) return codes_of(b.keys[page + pages]);
    const int value = b.first_page + page + pages - b.end_page;
    return codes_of(b.values[value < b.end_page ? value : b.first_page]);
  }

  /// Scores of C tiles of 16 keys, two of which make a page.
  template <int V, int C>
  static void score_tiles(const Int16AttentionBlock& b, int tile) {
    constexpr int P = C < kTilesPerPage ? 1 : C / kTilesPerPage;
    constexpr int kPairCodes = 2 * kPageTokens;
    const int first = C < kTilesPerPage ? tile % kTilesPerPage * kTileCodes : 0;
    I32 acc[V][C];
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED { acc[I][J] = L::zero(); });
    const std::int16_t* keys[P];
    const std::int16_t* next[P];
    for (int p = 0; p < P; ++p) {
      const int page = tile / kTilesPerPage + p;
      keys[p] = codes_of(b.keys[page]) + first;
      next[p] = after_keys(b, page, P) + first;
      Float::fetch_scales(b, next[p] - first);
    }
    const std::int16_t* q = b.queries;
    for (int d = 0; d < b.head_size / 2; ++d, q += 2 * V) {
      I16 k[C];
      for (int c = 0; c < C; ++c) {
        const int at = d * kPairCodes + c % kTilesPerPage * kTileCodes;
        k[c] = L::load_i16(keys[c / kTilesPerPage] + at);
        Float::fetch(next[c / kTilesPerPage] + at);
      }
      add_products<V, C>(q, 2, k, acc);
    }
    F32 scales[C];
    for (int c = 0; c < C; ++c) {
      const int t = tile + c;
      scales[c] = L::load(Float::scales_of(b, codes_of(b.keys[t / kTilesPerPage])) +
                          t % kTilesPerPage * 16);
    }
    float* scores = b.scores + tile * 16;
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      const F32 score = L::mul(L::to_f32(acc[I][J]), L::set1(b.query_scales[I]));
      L::store(scores + I * kBlockTokens + J * 16, L::mul(score, scales[J]));
    });
  }

  /// The softmax's weights of vector i, times the scales of the values, as codes; returns what
  /// these are to be multiplied with.
  static float round_weights(const Int16AttentionBlock& b, int i) {
    const int begin = b.first_page * kPageTokens;
    const int end = b.end_page * kPageTokens;
    float* weights = b.scores + i * kBlockTokens;
    F32 sums = L::set1(0.0F);
    F32 top = L::set1(0.0F);
    for (int key = begin; key < end; key += 16) {
      const float* scales =
          Float::scales_of(b, codes_of(b.values[key / kPageTokens])) + key % kPageTokens;
      const F32 w = L::mul(L::load(weights + key), L::load(scales));
      L::store(weights + key, w);
      sums = L::add(sums, w);
      top = L::max(w, top);
    }
    const float sum = L::sum(sums);
    const float by_sum = sum / kLargestWeights;
    const float by_largest = L::max_of(top) / kLargestCode;
    const float unit = by_largest > by_sum ? by_largest : by_sum;
    const F32 inverse = L::set1(sum < kSmallestMagnitude ? 0.0F : 1.0F / unit);
    // What rounding takes from a weight, or gives to it, the key 16 further on gets: many small
    // weights are else all rounded up, or down, or away. A weight of 0 stays 0.
    F32 rest = L::set1(0.0F);
    for (int key = begin; key < end; key += 16) {
      const F32 wanted = L::fma(L::load(weights + key), inverse, rest);
      const F32 code = L::round(wanted);
      rest = L::sub(wanted, code);
      L::store_codes(b.weights + i * kBlockTokens + key, code);
    }
    return unit;
  }

  /// block_out = sum of weight * value over the block.
  template <int V, int C>
  static void sum_values(const Int16AttentionBlock& b, const float* units) {
    const int columns = b.head_size / 16;
    for (int page = b.first_page; page < b.end_page; ++page) {
      int column = 0;
      for (; column + C <= columns; column += C) sum_page<V, C>(b, page, column, units);
      for (; column < columns; ++column) sum_page<V, 1>(b, page, column, units);
      const bool is_last = page + 1 == b.end_page;
      Float::fetch_scales(b, codes_of(is_last ? b.next_keys : b.values[page + 1]));
    }
  }

  /// Adds a page to the sums of C columns: 32-bit integers in block_out until the last page.
  template <int V, int C>
  static void sum_page(const Int16AttentionBlock& b, int page, int column, const float* units) {
    float* out = b.block_out + column * 16;
    const bool is_first = page == b.first_page;
    const bool is_last = page + 1 == b.end_page;
    I32 acc[V][C];
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      acc[I][J] = is_first ? L::zero() : L::load_i32(out + I * b.head_size + J * 16);
    });
    const int chunk = column / kChunkColumns * kChunkColumns;
    const int left = b.head_size / 16 - chunk;
    const int pair_codes = (left < kChunkColumns ? left : kChunkColumns) * kTileCodes;
    const int first = chunk * 16 * kPageTokens + (column - chunk) * kTileCodes;
    const std::int16_t* values = codes_of(b.values[page]) + first;
    const std::int16_t* next = codes_of(is_last ? b.next_keys : b.values[page + 1]) + first;
    const std::int16_t* weights = b.weights + page * kPageTokens;
    for (int j = 0; j < kPageTokens; j += 2, values += pair_codes, next += pair_codes) {
      I16 v[C];
      for (int c = 0; c < C; ++c) {
        v[c] = L::load_i16(values + c * kTileCodes);
        Float::fetch(next + c * kTileCodes);
      }
      add_products<V, C>(weights + j, kBlockTokens, v, acc);
    }
    for_each_sum<V, C>([&]<int I, int J>() TANDEM_INLINED {
      float* sum = out + I * b.head_size + J * 16;
      if (is_last) {
        L::store(sum, L::mul(L::to_f32(acc[I][J]), L::set1(units[I])));
      } else {
        L::store_i32(sum, acc[I][J]);
      }
    });
  }
};

}  // namespace tandem::kernels::cpu
