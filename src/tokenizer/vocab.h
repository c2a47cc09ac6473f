#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tandem/core/units.h"

namespace tandem::tokenizer {

/// Kind of a vocabulary entry, numbered as in GGUF's token_type.
enum class TokenKind : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      ///< produces no text unless special tokens are shown
  kUserDefined = 4,  ///< matched like a control token, always shown
  kUnused = 5,
  kByte = 6,         ///< "<0xHH>"
};

/// A vocabulary as the files describe it, not yet checked: plain data for Tokenizer::create.
struct VocabData {
  std::vector<std::string> tokens;   ///< by id; spaces are written U+2581
  std::vector<TokenKind> kinds;      ///< by id
  std::vector<std::pair<std::string, std::string>> merges;  ///< by rank, best first
  TokenId bos = -1, eos = -1, eot = -1, unknown = -1, padding = -1;  ///< -1: the file names none
  std::vector<TokenId> end_tokens;  ///< more ids that end a generation, beside eos and eot
};

}  // namespace tandem::tokenizer
