#pragma once

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "grammar_rig.h"

namespace tandem::testing {

inline std::vector<TokenId> allowed_tokens(const std::vector<std::uint32_t>& mask) {
  std::vector<TokenId> out;
  for (std::size_t word = 0; word < mask.size(); ++word) {
    for (std::uint32_t rest = mask[word]; rest != 0; rest &= rest - 1) {
      out.push_back(static_cast<TokenId>(word * 32) + std::countr_zero(rest));
    }
  }
  return out;
}

/// Tokens that bring a text to its end.
inline bool closes(TokenId token) {
  const std::string_view bytes = real_tokenizer().bytes(token);
  return real_tokenizer().is_end_of_generation(token) || bytes == "\"" || bytes == "}" ||
         bytes == "]" || bytes == "<|\"|>" || bytes == "<tool_call|>" || bytes == "\"}" ||
         bytes == "\"," || bytes == "0";
}

/// The tokens of a random text of the grammar, its end token left out; nothing if it does not end
/// in time.
inline std::optional<std::vector<TokenId>> random_tokens(
    const std::shared_ptr<const Grammar>& grammar, std::mt19937& random,
    grammar::TrieWalker& walker) {
  Matcher matcher(grammar);
  std::vector<std::uint32_t> mask(grammar->mask_words());
  std::vector<TokenId> tokens;
  for (int i = 0; i < 150; ++i) {
    const core::Status status = matcher.fill_mask(mask, walker);
    EXPECT_TRUE(status.ok()) << status.message();
    const std::vector<TokenId> allowed = allowed_tokens(mask);
    if (allowed.empty()) return std::nullopt;
    TokenId token = allowed[random() % allowed.size()];
    if (random() % 30 < static_cast<unsigned>(i)) {  // more and more
      std::vector<TokenId> closing;
      std::copy_if(allowed.begin(), allowed.end(), std::back_inserter(closing), closes);
      if (!closing.empty()) token = closing[random() % closing.size()];
    }
    EXPECT_TRUE(matcher.accept(token)) << "the mask allows what accept() does not";
    if (matcher.is_finished()) return tokens;
    tokens.push_back(token);
  }
  return std::nullopt;
}

}  // namespace tandem::testing
