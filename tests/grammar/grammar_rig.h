#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/grammar/compiler.h"
#include "tandem/grammar/matcher.h"
#include "vocab_fixture.h"

namespace tandem::testing {

using grammar::Grammar;
using grammar::Matcher;
using grammar::Source;

/// A compiler over the real vocabulary, made once a process.
inline grammar::Compiler& compiler() {
  static grammar::Compiler compiler(real_tokenizer());
  return compiler;
}

inline Source source(Source::Kind kind, std::string text) {
  Source out;
  out.kind = kind;
  out.text = std::move(text);
  return out;
}

/// The grammar of a source that must compile.
inline std::shared_ptr<const Grammar> compiled(Source::Kind kind, std::string text) {
  auto made = compiler().compile(source(kind, std::move(text)));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : nullptr;
}

inline std::vector<TokenId> byte_tokens(std::string_view text) {
  static const std::vector<TokenId> ids = [] {
    std::vector<TokenId> out;
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", byte);
      out.push_back(real_tokenizer().find(name));
    }
    return out;
  }();
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(ids[static_cast<unsigned char>(c)]);
  return out;
}

inline bool matches(const std::shared_ptr<const Grammar>& grammar,
                    const std::vector<TokenId>& tokens) {
  Matcher matcher(grammar);
  for (const TokenId token : tokens) {
    if (!matcher.accept(token)) return false;
  }
  return matcher.can_end();
}

/// Whether the whole text matches, however it is cut into tokens.
inline bool matches(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  const bool by_bytes = matches(grammar, byte_tokens(text));
  EXPECT_EQ(matches(grammar, real_tokenizer().encode(text, false)), by_bytes) << text;
  return by_bytes;
}

}  // namespace tandem::testing
