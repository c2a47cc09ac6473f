#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::grammar {

/// The bytes of a vocabulary's text tokens as a trie in preorder: the nodes below node i are
/// [i + 1, nodes[i].end), each child followed by its own. Control and user-defined tokens are not
/// in it: they never stand for text. Immutable.
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

 private:
  const tokenizer::Tokenizer* tokenizer_;
  std::vector<Node> nodes_;
  std::vector<TokenId> next_same_;
  std::vector<bool> is_text_;
  int max_depth_ = 0;
};

}  // namespace tandem::grammar
