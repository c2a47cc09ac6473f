#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/tokenizer/vocab.h"

namespace tandem::tokenizer {

/// A stretch of text to encode. In template text, special tokens are matched by their strings; in
/// user text nothing is matched, so that nobody can write control tokens into a prompt.
struct TextPiece {
  std::string text;
  bool match_special = false;
};

/// The Gemma 4 tokenizer: BPE over segments between special tokens, byte fallback, no Unicode
/// normalization, spaces as U+2581 (spec/tokenizer-chat.md). Immutable. Thread: any.
class Tokenizer {
 public:
  /// Checks and indexes the vocabulary; fails with kDataLoss naming the entry that is wrong
  /// (sizes differ, a merge of unknown pieces, a byte token missing, duplicate tokens).
  static core::Result<std::shared_ptr<const Tokenizer>> create(VocabData data);
  ~Tokenizer();

  /// Ids of the text; never adds BOS. Invalid UTF-8 becomes U+FFFD per maximal ill-formed subpart.
  /// Linear time in practice: O(n log n) in the longest segment. Adjacent pieces are one text: a
  /// BPE segment may run across their border, only special matching differs.
  std::vector<TokenId> encode(std::span<const TextPiece> pieces) const;
  std::vector<TokenId> encode(std::string_view text, bool match_special) const;

  int vocab_size() const;
  TokenKind kind(TokenId id) const;
  /// The entry as the file spells it.
  std::string_view piece(TokenId id) const;
  /// Bytes that an id stands for in text: the byte of a byte token, the literal of a special
  /// token, else the piece with spaces. Control tokens too; StreamDecoder decides what is shown.
  std::string_view bytes(TokenId id) const;
  /// Id of an entry spelled exactly so, or -1.
  TokenId find(std::string_view piece) const;

  TokenId bos() const;
  /// <eos>, <turn|>, <|tool_response> and the file's own eos and eot: generation stops after one.
  bool is_end_of_generation(TokenId id) const;
  std::vector<TokenId> end_of_generation() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::tokenizer
