#include "tandem/grammar/token_trie.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tandem/grammar/plain_text.h"

namespace tandem::grammar {

namespace {

constexpr int kMaxPlainLength = 40;  // of a plain token; a longer one counts to the rest

std::vector<TokenId> text_tokens(const tokenizer::Tokenizer& tokenizer) {
  using tokenizer::TokenKind;
  std::vector<TokenId> tokens;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenKind kind = tokenizer.kind(id);
    const std::size_t size = tokenizer.bytes(id).size();
    if ((kind == TokenKind::kNormal || kind == TokenKind::kByte) && size > 0 &&
        size <= std::numeric_limits<std::uint16_t>::max()) {
      tokens.push_back(id);
    }
  }
  return tokens;
}

}  // namespace

TokenTrie::TokenTrie(const tokenizer::Tokenizer& tokenizer)
    : TokenTrie(tokenizer, text_tokens(tokenizer)) {
  divide(text_tokens(tokenizer));
}

void TokenTrie::divide(const std::vector<TokenId>& tokens) {
  const std::size_t num_words = (next_same_.size() + 31) / 32;
  plain_.emplace_back(num_words);
  std::vector<TokenId> rest;
  for (const TokenId id : tokens) {
    const int length = count_plain(bytes(id));
    if (length < 0 || length > kMaxPlainLength) {
      rest.push_back(id);
      continue;
    }
    while (max_plain() < length) plain_.emplace_back(num_words);
    plain_[static_cast<std::size_t>(length)][static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
  }
  for (std::size_t length = 1; length < plain_.size(); ++length) {
    for (std::size_t word = 0; word < num_words; ++word) {
      plain_[length][word] |= plain_[length - 1][word];
    }
  }
  rest_.reset(new TokenTrie(*tokenizer_, std::move(rest)));
}

TokenTrie::TokenTrie(const tokenizer::Tokenizer& tokenizer, std::vector<TokenId> order)
    : tokenizer_(&tokenizer),
      next_same_(static_cast<std::size_t>(tokenizer.vocab_size()), -1),
      is_text_(static_cast<std::size_t>(tokenizer.vocab_size())) {
  for (const TokenId id : order) is_text_[static_cast<std::size_t>(id)] = true;
  std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    const std::string_view x = tokenizer.bytes(a), y = tokenizer.bytes(b);
    return x != y ? x < y : a < b;
  });

  nodes_.emplace_back();
  std::vector<std::int32_t> path = {0};  // nodes of the last token's bytes, the root first
  std::string_view last;
  const auto leave = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[static_cast<std::size_t>(path.back())].end = static_cast<std::int32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (const TokenId id : order) {
    const std::string_view bytes = tokenizer.bytes(id);
    const auto split = std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end());
    leave(static_cast<std::size_t>(split.first - last.begin()));
    while (path.size() <= bytes.size()) {
      const std::size_t depth = path.size();
      path.push_back(static_cast<std::int32_t>(nodes_.size()));
      nodes_.push_back(
          {0, -1, static_cast<std::uint16_t>(depth), static_cast<std::uint8_t>(bytes[depth - 1])});
    }
    Node& node = nodes_[static_cast<std::size_t>(path.back())];
    next_same_[static_cast<std::size_t>(id)] = node.token;
    node.token = id;
    max_depth_ = std::max(max_depth_, static_cast<int>(bytes.size()));
    last = bytes;
  }
  leave(0);
  nodes_[0].end = static_cast<std::int32_t>(nodes_.size());
}

}  // namespace tandem::grammar
