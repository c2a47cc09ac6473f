#include "tandem/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "tandem/core/printable.h"
#include "tandem/core/utf8.h"

namespace tandem::tokenizer {

namespace {

using core::decode_utf8;
using core::Utf8Char;

/// A piece for a message.
std::string shown(std::string_view piece) {
  return core::printable(piece, 64);
}

std::string_view first_char(std::string_view text) {
  return text.substr(0, text.empty() ? 0 : decode_utf8(text).length);
}

std::string_view last_char(std::string_view text) {
  std::size_t start = text.empty() ? 0 : text.size() - 1;
  const auto is_continuation = [&](std::size_t i) {
    return (text[i] & 0xC0) == 0x80;
  };
  while (start > 0 && is_continuation(start)) --start;
  return text.substr(start);
}

/// The code point of a piece that is exactly one character.
bool is_single_char(std::string_view piece, char32_t& code_point) {
  if (piece.empty()) return false;
  const Utf8Char c = decode_utf8(piece);
  code_point = c.code_point;
  return c.kind == Utf8Char::Kind::kValid && c.length == piece.size();
}

}  // namespace

void Bpe::CharTable::insert(char32_t code_point, TokenId id) {
  std::uint16_t& page = page_of_[code_point >> 8];
  if (page == 0) {
    page = static_cast<std::uint16_t>(ids_.size() / 256);
    ids_.resize(ids_.size() + 256, -1);
  }
  ids_[std::size_t{page} * 256 + (code_point & 255)] = id;
}

core::Result<Bpe> Bpe::create(const PieceTable& pieces, const MergeList& merges) {
  if (merges.size() >= MergeTable::kNoRank) {
    return core::data_loss(fmt::format("{} merges are too many", merges.size()));
  }
  Bpe bpe(merges.size());
  TANDEM_TRY(bpe.add_characters(pieces));
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    TANDEM_TRY(bpe.add_merge(pieces, rank, merges[rank].first, merges[rank].second));
  }
  return bpe;
}

core::Status Bpe::add_characters(const PieceTable& pieces) {
  byte_tokens_.fill(-1);
  for (TokenId id = 0; id < pieces.size(); ++id) {
    char32_t code_point = 0;
    if (pieces.kind(id) == TokenKind::kByte) {
      byte_tokens_[static_cast<unsigned char>(pieces.bytes(id)[0])] = id;
    } else if (pieces.kind(id) != TokenKind::kControl &&
               is_single_char(pieces.piece(id), code_point)) {
      characters_.insert(code_point, id);
    }
  }
  // A space is written U+2581, so both are the same character.
  char32_t space = 0;
  is_single_char(kSpacePiece, space);
  characters_.insert(U' ', characters_.find(space));

  for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    if (byte_tokens_[byte] < 0) {
      return core::data_loss(fmt::format("the vocabulary lacks the byte token <0x{:02X}>", byte));
    }
  }
  return {};
}

core::Status Bpe::add_merge(const PieceTable& pieces, std::size_t rank, std::string_view left,
                            std::string_view right) {
  const TokenId left_id = pieces.find(left);
  const TokenId right_id = pieces.find(right);
  const TokenId joined = pieces.find(left, right);
  if (left.empty() || right.empty() || left_id < 0 || right_id < 0 || joined < 0) {
    return core::data_loss(
        fmt::format("merge {} (\"{}\" + \"{}\") names a piece that the vocabulary lacks; the file "
                    "is damaged, get it again",
                    rank, shown(left), shown(right)));
  }
  for (const TokenId id : {left_id, right_id, joined}) {
    if (pieces.kind(id) == TokenKind::kByte || pieces.kind(id) == TokenKind::kControl) {
      return core::data_loss(
          fmt::format("merge {} (\"{}\" + \"{}\") touches token {}, which is no "
                      "ordinary text; the file is damaged, get it again",
                      rank, shown(left), shown(right), id));
    }
  }
  merges_.insert(left_id, right_id, {static_cast<std::uint32_t>(rank), joined});

  // A part with a character outside the vocabulary never arises, so its merge joins nothing.
  const TokenId last = pieces.find(last_char(left));
  const TokenId first = pieces.find(first_char(right));
  if (last >= 0 && first >= 0) joins_.insert(last, first);
  return {};
}

/// Merges one word. Short words are scanned for the best pair, which is the faster way up to a few
/// dozen symbols; long ones keep the candidates in a heap over a linked list, O(n log n).
class Bpe::WordMerger {
 public:
  explicit WordMerger(const MergeTable& merges) : merges_(merges) {}

  void add(TokenId symbol) { symbols_.push_back({symbol}); }

  /// Appends the merged word to `out` and forgets it.
  void finish(std::vector<TokenId>& out) {
    if (symbols_.size() > kLongestScanned) {
      merge_with_heap(out);
    } else {
      merge_by_scan(out);
    }
    symbols_.clear();
  }

 private:
  static constexpr std::size_t kLongestScanned = 32;
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Symbol {
    TokenId id;                 // -1: joined into the one before
    MergeTable::Merge merge{};  // with the next symbol
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
  };

  void merge_by_scan(std::vector<TokenId>& out) {
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) {
      symbols_[i].merge = merges_.find(symbols_[i].id, symbols_[i + 1].id);
    }
    while (symbols_.size() > 1) {
      const auto best = std::min_element(
          symbols_.begin(), symbols_.end() - 1,
          [](const Symbol& a, const Symbol& b) { return a.merge.rank < b.merge.rank; });
      if (best->merge.rank == MergeTable::kNoRank) break;
      best->id = best->merge.joined;
      const auto next = symbols_.erase(best + 1);
      best->merge = next == symbols_.end() ? MergeTable::Merge{} : merges_.find(best->id, next->id);
      if (best != symbols_.begin()) (best - 1)->merge = merges_.find((best - 1)->id, best->id);
    }
    for (const Symbol& symbol : symbols_) out.push_back(symbol.id);
  }

  /// Looks up the merge of symbol `i` with its successor and queues it. Rank and position make one
  /// number, so that the smallest is the leftmost of the best; an entry is stale when the rank is
  /// no longer that of the pair at the position.
  void queue_merge(std::uint32_t i) {
    Symbol& symbol = symbols_[i];
    symbol.merge = symbol.next == kNone ? MergeTable::Merge{}
                                        : merges_.find(symbol.id, symbols_[symbol.next].id);
    if (symbol.merge.rank != MergeTable::kNoRank) {
      heap_.push((std::uint64_t{symbol.merge.rank} << 32) | i);
    }
  }

  void merge_with_heap(std::vector<TokenId>& out) {
    const auto count = static_cast<std::uint32_t>(symbols_.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      symbols_[i].previous = i == 0 ? kNone : i - 1;
      symbols_[i].next = i + 1 == count ? kNone : i + 1;
    }
    for (std::uint32_t i = 0; i < count; ++i) queue_merge(i);
    while (!heap_.empty()) {
      const std::uint64_t entry = heap_.top();
      heap_.pop();
      const auto i = static_cast<std::uint32_t>(entry);
      Symbol& left = symbols_[i];
      if (left.id < 0 || left.merge.rank != entry >> 32) continue;
      Symbol& right = symbols_[left.next];
      left.id = left.merge.joined;
      right.id = -1;
      left.next = right.next;
      if (left.next != kNone) symbols_[left.next].previous = i;
      queue_merge(i);
      if (left.previous != kNone) queue_merge(left.previous);
    }
    for (std::uint32_t i = 0; i != kNone; i = symbols_[i].next) out.push_back(symbols_[i].id);
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap_;
};

void Bpe::encode(std::string_view segment, std::vector<TokenId>& out) const {
  TANDEM_CHECK(segment.size() < (std::size_t{1} << 31), "a segment of 2 GiB or more");
  WordMerger word(merges_);
  TokenId previous = -1;  // the character before, or -1 where a word begins anyway
  while (!segment.empty()) {
    const Utf8Char c = decode_utf8(segment);
    const TokenId id = characters_.find(c.code_point);
    if (previous >= 0 && (id < 0 || !joins_.may_join(previous, id))) word.finish(out);
    if (id >= 0) {
      word.add(id);
    } else {
      const bool valid = c.kind == Utf8Char::Kind::kValid;
      for (const char byte : valid ? segment.substr(0, c.length) : core::kReplacementUtf8) {
        out.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
      }
    }
    previous = id;
    segment.remove_prefix(c.length);
  }
  word.finish(out);
}

}  // namespace tandem::tokenizer
