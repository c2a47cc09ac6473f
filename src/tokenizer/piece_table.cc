#include "tandem/tokenizer/piece_table.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "tandem/core/printable.h"

namespace tandem::tokenizer {

namespace {

/// FNV-1a, 64 bits, over two strings as if they were one.
std::size_t hash_joined(std::string_view left, std::string_view right) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::string_view part : {left, right}) {
    for (const char c : part) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
    }
  }
  return static_cast<std::size_t>(hash ^ (hash >> 32));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string spaces_for_underscores(std::string_view piece) {
  std::string out;
  out.reserve(piece.size());
  for (std::size_t from = 0;;) {
    const std::size_t at = piece.find(kSpacePiece, from);
    out.append(piece.substr(from, at - from));
    if (at == std::string_view::npos) return out;
    out.push_back(' ');
    from = at + kSpacePiece.size();
  }
}

bool is_known(TokenKind kind) {
  return kind >= TokenKind::kNormal && kind <= TokenKind::kByte;
}

}  // namespace

int parse_byte_piece(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  const int high = hex_digit(piece[3]);
  const int low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::optional<std::pair<std::string, std::string>> split_merge(std::string_view text) {
  const std::size_t space = text.find(' ', 1);
  if (space == text.npos || space + 1 == text.size()) return std::nullopt;
  return std::pair(std::string(text.substr(0, space)), std::string(text.substr(space + 1)));
}

void PieceTable::Arena::reserve(std::size_t count, std::size_t bytes) {
  ends_.reserve(count + 1);
  text_.reserve(bytes);
}

void PieceTable::Arena::push_back(std::string_view text) {
  text_.append(text);
  ends_.push_back(static_cast<std::uint32_t>(text_.size()));
}

core::Result<PieceTable> PieceTable::create(const VocabData& data) {
  const std::size_t count = data.tokens.size();
  if (count == 0) return core::data_loss("the vocabulary has no tokens");
  if (data.kinds.size() != count) {
    return core::data_loss(
        fmt::format("the vocabulary has {} tokens but {} token types", count, data.kinds.size()));
  }
  std::size_t text_bytes = 0;
  for (const std::string& token : data.tokens) text_bytes += token.size();
  if (count > std::numeric_limits<TokenId>::max() / 4 ||
      text_bytes > std::numeric_limits<std::uint32_t>::max()) {
    return core::data_loss(
        fmt::format("a vocabulary of {} tokens and {} bytes is too large", count, text_bytes));
  }

  PieceTable table;
  table.kinds_ = data.kinds;
  table.pieces_.reserve(count, text_bytes);
  table.bytes_.reserve(count, text_bytes);
  for (std::size_t id = 0; id < count; ++id) {
    const std::string& token = data.tokens[id];
    const TokenKind kind = data.kinds[id];
    table.pieces_.push_back(token);
    if (!is_known(kind)) {
      return core::data_loss(
          fmt::format("token {} has the unknown type {}", id, static_cast<int>(kind)));
    }
    if (kind == TokenKind::kByte) {
      const int byte = parse_byte_piece(token);
      if (byte < 0) {
        return core::data_loss(fmt::format("byte token {} is not spelled <0xHH>", id));
      }
      const char c = static_cast<char>(byte);
      table.bytes_.push_back({&c, 1});
    } else if (kind == TokenKind::kControl || kind == TokenKind::kUserDefined) {
      table.bytes_.push_back(token);
    } else {
      table.bytes_.push_back(spaces_for_underscores(token));
    }
  }
  TANDEM_TRY(table.build_index());
  return table;
}

core::Status PieceTable::build_index() {
  slots_.assign(std::bit_ceil(kinds_.size() * 2), -1);
  const std::size_t mask = slots_.size() - 1;
  for (TokenId id = 0; id < size(); ++id) {
    std::size_t slot = hash_joined(piece(id), {}) & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      if (piece(slots_[slot]) == piece(id)) {
        return core::data_loss(fmt::format(
            "tokens {} and {} are spelled alike: \"{}\"; the file is damaged, get it again",
            slots_[slot], id, core::printable(piece(id), 64)));
      }
    }
    slots_[slot] = id;
  }
  return {};
}

TokenId PieceTable::find(std::string_view left, std::string_view right) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash_joined(left, right) & mask;; slot = (slot + 1) & mask) {
    const TokenId id = slots_[slot];
    if (id < 0) return -1;
    const std::string_view candidate = piece(id);
    if (candidate.size() == left.size() + right.size() && candidate.starts_with(left) &&
        candidate.ends_with(right)) {
      return id;
    }
  }
}

}  // namespace tandem::tokenizer
