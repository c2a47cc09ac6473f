#include "tandem/tokenizer/special_matcher.h"

#include <algorithm>

namespace tandem::tokenizer {

SpecialMatcher::SpecialMatcher(const PieceTable& pieces) {
  for (TokenId id = 0; id < pieces.size(); ++id) {
    const TokenKind kind = pieces.kind(id);
    const std::string_view spelling = pieces.piece(id);
    if (spelling.empty() || (kind != TokenKind::kControl && kind != TokenKind::kUserDefined)) {
      continue;
    }
    entries_.push_back({spelling, id});
    is_first_byte_[static_cast<unsigned char>(spelling[0])] = true;
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.spelling < b.spelling; });
}

std::optional<SpecialMatcher::Match> SpecialMatcher::find(std::string_view text,
                                                          std::size_t from) const {
  for (std::size_t position = from; position < text.size(); ++position) {
    if (!is_first_byte_[static_cast<unsigned char>(text[position])]) continue;
    if (const auto match = longest_at(text, position)) return match;
  }
  return std::nullopt;
}

std::optional<SpecialMatcher::Match> SpecialMatcher::longest_at(std::string_view text,
                                                                std::size_t position) const {
  std::optional<Match> match;
  auto begin = entries_.begin();
  auto end = entries_.end();
  for (std::size_t depth = 0; position + depth < text.size(); ++depth) {
    // [begin, end): the entries that agree with the text so far, all longer than `depth`.
    const auto byte = static_cast<unsigned char>(text[position + depth]);
    const auto byte_at_depth = [depth](const Entry& entry) {
      return static_cast<unsigned char>(entry.spelling[depth]);
    };
    begin =
        std::partition_point(begin, end, [&](const Entry& e) { return byte_at_depth(e) < byte; });
    end =
        std::partition_point(begin, end, [&](const Entry& e) { return byte_at_depth(e) == byte; });
    if (begin != end && begin->spelling.size() == depth + 1) {
      match = Match{position, depth + 1, begin->id};
      ++begin;
    }
    if (begin == end) break;
  }
  return match;
}

}  // namespace tandem::tokenizer
