#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/tokenizer/piece_table.h"

namespace tandem::tokenizer {

/// Finds the control and user-defined tokens in a text by their spelling, the longest at each
/// position. A sorted list is narrowed byte by byte, as a walk down a trie. Immutable.
class SpecialMatcher {
 public:
  /// The table must outlive the matcher.
  explicit SpecialMatcher(const PieceTable& pieces);

  struct Match {
    std::size_t position;
    std::size_t length;
    TokenId id;
  };
  /// The first match at or after `from`.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::optional<Match> longest_at(std::string_view text, std::size_t position) const;

  struct Entry {
    std::string_view spelling;
    TokenId id;
  };
  std::vector<Entry> entries_;             // by spelling
  std::array<bool, 256> is_first_byte_{};  // of some entry
};

}  // namespace tandem::tokenizer
