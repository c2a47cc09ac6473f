#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tandem/core/units.h"

namespace tandem::tokenizer {

/// Fibonacci hashing of a pair of ids: the top bits are the well-mixed ones.
inline std::uint64_t hash_pair(TokenId left, TokenId right) {
  const std::uint64_t key =
      (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
  return (key ^ (key >> 29)) * 0x9E3779B97F4A7C15U;
}

/// The merges of a BPE vocabulary: (left id, right id) -> (rank, joined id). Open addressing, 16
/// bytes a slot, so that a look-up costs one cache miss. Filled once, then immutable.
class MergeTable {
 public:
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

  struct Merge {
    std::uint32_t rank = kNoRank;  ///< smaller goes first; kNoRank: the pair does not merge
    TokenId joined = -1;
  };

  /// An empty table for up to `capacity` merges.
  explicit MergeTable(std::size_t capacity);

  /// Adds a merge; the first of equal pairs holds.
  void insert(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    TokenId left = -1;  // -1: empty
    TokenId right = -1;
    Merge merge;
  };
  std::size_t slot_of(TokenId left, TokenId right) const;

  std::vector<Slot> slots_;  // a power of two
  int shift_;                // 64 - log2(slots)
};

/// Answers whether any merge can ever join across the border of two neighbouring characters: there
/// must be a merge whose left part ends in the one and whose right part begins with the other.
/// Where it says no, a text can be cut into words that BPE treats alone, exactly. A bitmap over
/// hashed pairs: a collision only costs a cut that could have been made.
class JoinFilter {
 public:
  explicit JoinFilter(std::size_t num_merges);

  /// Characters are given by the ids of their single-character tokens.
  void insert(TokenId last_of_left, TokenId first_of_right);
  bool may_join(TokenId left, TokenId right) const {
    const std::size_t bit = bit_of(left, right);
    return (words_[bit / 64] >> (bit % 64) & 1U) != 0;
  }

 private:
  std::size_t bit_of(TokenId left, TokenId right) const { return hash_pair(left, right) >> shift_; }

  std::vector<std::uint64_t> words_;
  int shift_;  // 64 - log2(bits)
};

}  // namespace tandem::tokenizer
