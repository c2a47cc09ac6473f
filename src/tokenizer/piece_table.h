#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/tokenizer/vocab.h"

namespace tandem::tokenizer {

/// How files write a space: U+2581.
inline constexpr std::string_view kSpacePiece = "\xE2\x96\x81";

/// The entries of a vocabulary by id and by spelling. Strings lie end to end in one block, and the
/// index holds ids only, so that an entry costs about 16 bytes beside its text. Immutable.
class PieceTable {
 public:
  /// Checks the entries: kDataLoss names the first that is wrong (kinds missing or unknown, byte
  /// tokens spelled wrong, two entries spelled alike, more text than 4 GiB).
  static core::Result<PieceTable> create(const VocabData& data);

  int size() const { return static_cast<int>(kinds_.size()); }
  TokenKind kind(TokenId id) const { return kinds_[static_cast<std::size_t>(id)]; }
  /// The entry as the file spells it.
  std::string_view piece(TokenId id) const { return pieces_.at(id); }
  /// The bytes it stands for in text; see Tokenizer::bytes.
  std::string_view bytes(TokenId id) const { return bytes_.at(id); }

  /// Id of the entry spelled `piece`, or of the one spelled `left` + `right`; -1 if none.
  TokenId find(std::string_view piece) const { return find(piece, {}); }
  TokenId find(std::string_view left, std::string_view right) const;

 private:
  /// Strings by id in one block.
  class Arena {
   public:
    void reserve(std::size_t count, std::size_t bytes);
    void push_back(std::string_view text);
    std::string_view at(TokenId id) const {
      const auto i = static_cast<std::size_t>(id);
      return {text_.data() + ends_[i], ends_[i + 1] - ends_[i]};
    }

   private:
    std::string text_;
    std::vector<std::uint32_t> ends_ = {0};  // [V + 1]; entry i ends where i + 1 starts
  };

  core::Status build_index();

  std::vector<TokenKind> kinds_;
  Arena pieces_;
  Arena bytes_;
  std::vector<TokenId> slots_;  // open addressing, linear probing, power of two; -1: empty
};

/// The two pieces of a merge that is written "LEFT RIGHT": a piece may start with a space but holds
/// none after that. Nothing if one of them is empty.
std::optional<std::pair<std::string, std::string>> split_merge(std::string_view text);

/// The byte that a byte token's spelling "<0xHH>" (upper case) stands for, or -1.
int parse_byte_piece(std::string_view piece);

}  // namespace tandem::tokenizer
