#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tandem/tokenizer/tokenizer.h"

namespace tandem::fuzz {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// 256 byte tokens, then the special ones of chats and a few words.
inline std::shared_ptr<const tokenizer::Tokenizer> chat_tokenizer() {
  using tokenizer::TokenKind;
  constexpr const char* kDigits = "0123456789ABCDEF";
  tokenizer::VocabData data;
  const auto add = [&data](std::string token, TokenKind kind) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(kind);
  };
  for (int byte = 0; byte < 256; ++byte) {
    add(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", TokenKind::kByte);
  }
  for (const char* token : {"<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool_response>"}) {
    add(token, TokenKind::kControl);
  }
  for (const char* token :
       {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<tool_response|>", "<|\"|>"}) {
    add(token, TokenKind::kUserDefined);
  }
  for (const char* token : {"thought", "\n", "call:f", "{", "}", "a:", "1", ",", "\xE2\x96\x81"}) {
    add(token, TokenKind::kNormal);
  }
  data.eos = 256;
  data.bos = 257;
  return tokenizer::Tokenizer::create(std::move(data)).value();
}

}  // namespace tandem::fuzz
