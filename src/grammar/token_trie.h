#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::grammar {

/// The bytes of a vocabulary's text tokens as a trie in preorder: the nodes below node i are
/// [i + 1, nodes[i].end), each child followed by its own. Control and user-defined tokens are not
/// in it: they never stand for text. Beside it, those of plain text (see plain_text.h) by their
/// length and a trie of the rest. Immutable.
class TokenTrie {
 public:
  struct Node {
    std::int32_t end = 0;     ///< node after the last one below
    TokenId token = -1;       ///< a token that ends here; more by next_same()
    std::uint16_t depth = 0;  ///< bytes from the root
    std::uint8_t byte = 0;    ///< the last of them
  };

  /// `tokenizer` must outlive the trie.
  explicit TokenTrie(const tokenizer::Tokenizer& tokenizer);

  /// Node 0 is the root, of no byte.
  std::span<const Node> nodes() const { return nodes_; }
  int max_depth() const { return max_depth_; }
  int vocab_size() const { return static_cast<int>(next_same_.size()); }
  std::string_view bytes(TokenId token) const { return tokenizer_->bytes(token); }
  /// Whether the token stands for text.
  bool holds(TokenId token) const { return is_text_[static_cast<std::size_t>(token)]; }
  /// The next token of the same bytes, or -1.
  TokenId next_same(TokenId token) const { return next_same_[static_cast<std::size_t>(token)]; }

  /// Characters of the longest plain token.
  int max_plain() const { return static_cast<int>(plain_.size()) - 1; }
  /// The plain tokens of at most so many characters, 0 to max_plain(): a bit each, ceil(V / 32)
  /// words.
  std::span<const std::uint32_t> plain(int length) const {
    return plain_[static_cast<std::size_t>(length)];
  }
  /// The trie of the tokens that are not plain.
  const TokenTrie& rest() const { return *rest_; }

 private:
  /// Of these tokens alone, without a rest.
  TokenTrie(const tokenizer::Tokenizer& tokenizer, std::vector<TokenId> tokens);
  void divide(const std::vector<TokenId>& tokens);

  const tokenizer::Tokenizer* tokenizer_;
  std::vector<Node> nodes_;
  std::vector<TokenId> next_same_;
  std::vector<bool> is_text_;
  int max_depth_ = 0;
  std::vector<std::vector<std::uint32_t>> plain_;
  std::unique_ptr<const TokenTrie> rest_;
};

}  // namespace tandem::grammar
