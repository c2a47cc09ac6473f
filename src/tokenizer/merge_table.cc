#include "tandem/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

namespace tandem::tokenizer {

MergeTable::MergeTable(std::size_t capacity) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(capacity + capacity / 4 + 1, 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

std::size_t MergeTable::slot_of(TokenId left, TokenId right) const {
  std::size_t slot = hash_pair(left, right) >> shift_;
  while (slots_[slot].left >= 0 && (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  Slot& slot = slots_[slot_of(left, right)];
  if (slot.left < 0) slot = {left, right, merge};
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  return slots_[slot_of(left, right)].merge;
}

JoinFilter::JoinFilter(std::size_t num_merges) {
  // There are far fewer pairs of characters than merges (33,695 to 514,906 in Gemma 4), so that
  // two bits a merge leave few collisions and the map in the second-level cache.
  const std::size_t bits = std::bit_ceil(std::max<std::size_t>(num_merges * 2, 64));
  words_.resize(bits / 64);
  shift_ = 64 - std::countr_zero(bits);
}

void JoinFilter::insert(TokenId last_of_left, TokenId first_of_right) {
  const std::size_t bit = bit_of(last_of_left, first_of_right);
  words_[bit / 64] |= std::uint64_t{1} << (bit % 64);
}

}  // namespace tandem::tokenizer
