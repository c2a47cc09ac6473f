#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/tokenizer/merge_table.h"
#include "tandem/tokenizer/piece_table.h"

namespace tandem::tokenizer {

/// Byte-pair encoding of text without special tokens: characters become their tokens (or, where the
/// vocabulary has none, byte tokens), then the neighbouring pair with the best merge is joined, the
/// leftmost of equals, until none is left (spec/tokenizer-chat.md section 1). Immutable.
class Bpe {
 public:
  using MergeList = std::vector<std::pair<std::string, std::string>>;

  /// Fails with kDataLoss: a byte token missing, a merge of parts or to a whole that the vocabulary
  /// lacks, or one that touches a byte or control token (text could then spell a control token).
  static core::Result<Bpe> create(const PieceTable& pieces, const MergeList& merges);

  /// Appends the ids of a segment of any length below 2 GiB. Ill-formed UTF-8 is read as U+FFFD.
  void encode(std::string_view segment, std::vector<TokenId>& out) const;

 private:
  /// Token ids of single characters: pages of 256 code points, only those in use.
  class CharTable {
   public:
    void insert(char32_t code_point, TokenId id);
    TokenId find(char32_t code_point) const {
      const std::uint16_t page = page_of_[code_point >> 8];
      return ids_[std::size_t{page} * 256 + (code_point & 255)];
    }

   private:
    std::array<std::uint16_t, 0x1100> page_of_{};               // page 0 is empty
    std::vector<TokenId> ids_ = std::vector<TokenId>(256, -1);  // -1: no such token
  };

  class WordMerger;

  Bpe(std::size_t num_merges) : merges_(num_merges), joins_(num_merges) {}
  core::Status add_characters(const PieceTable& pieces);
  core::Status add_merge(const PieceTable& pieces, std::size_t rank, std::string_view left,
                         std::string_view right);

  CharTable characters_;
  std::array<TokenId, 256> byte_tokens_{};
  MergeTable merges_;
  JoinFilter joins_;
};

}  // namespace tandem::tokenizer
