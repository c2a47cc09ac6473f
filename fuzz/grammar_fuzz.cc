// Any bytes as a schema, a regular expression, a GBNF grammar, a choice or a function's schema:
// refused with a sentence, or compiled; then the mask must say of every token what accept() says
// along some text.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/grammar/compiler.h"
#include "tandem/grammar/matcher.h"

namespace {

using namespace tandem;
using tokenizer::TokenKind;

constexpr TokenId kEos = 0, kBos = 1, kOpen = 2, kClose = 3, kFirstByte = 4;

/// The end, all byte tokens and some longer ones.
tokenizer::VocabData small_vocab() {
  tokenizer::VocabData data;
  const auto add = [&data](std::string token, TokenKind kind) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(kind);
  };
  for (const char* token : {"<eos>", "<bos>", "<|channel>", "<channel|>"}) {
    add(token, TokenKind::kControl);
  }
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    add(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", TokenKind::kByte);
  }
  for (const char* token : {"a", "aa", "ab", "\"", "\":", "\",", "\"}", "{\"", "[[", "]}", "true",
                            "12", "-1", "\xC3\xA9", "\xE2\x96\x81", "\\u00", "abc\"", "\n\n"}) {
    add(token, TokenKind::kNormal);
  }
  data.eos = kEos;
  data.bos = kBos;
  return data;
}

/// The tokens that a walk tries: a byte of each kind that grammars tell apart, and all longer ones.
std::vector<TokenId> tried_tokens(int vocab_size) {
  constexpr std::string_view kBytes =
      "\t\n !\"#$()*+,-./019:?AZ[\\]^abfntuxz{|}\x7F\x80\x81\x96\xA9\xBF\xC3\xE2\xF0\xFF";
  std::vector<TokenId> tokens = {kEos, kBos, kOpen, kClose};
  for (const char c : kBytes) tokens.push_back(kFirstByte + static_cast<unsigned char>(c));
  for (TokenId token = kFirstByte + 256; token < vocab_size; ++token) tokens.push_back(token);
  return tokens;
}

void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// Follows the grammar by the bytes of `choices`.
void walk(const std::shared_ptr<const grammar::Grammar>& compiled, std::string_view choices) {
  grammar::TrieWalker walker;
  grammar::Matcher matcher(compiled);
  std::vector<std::uint32_t> mask(compiled->mask_words());
  static const std::vector<TokenId> tried = tried_tokens(compiled->trie().vocab_size());
  const auto is_set = [&mask](TokenId token) {
    return (mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) != 0;
  };
  for (const char choice : choices.substr(0, 16)) {
    if (matcher.is_finished() || !matcher.fill_mask(mask, walker).ok()) return;
    std::vector<TokenId> allowed;
    for (const TokenId token : tried) {
      grammar::Matcher ahead = matcher;
      const bool accepts = ahead.accept(token);
      require(!accepts || is_set(token));
      if (accepts) allowed.push_back(token);
    }
    if (allowed.empty()) return;  // at the limits of an ambiguous grammar
    require(matcher.accept(allowed[static_cast<unsigned char>(choice) % allowed.size()]));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = tokenizer::Tokenizer::create(small_vocab());
  static grammar::Compiler compiler(**tokenizer);
  if (size < 1) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t split = std::min(input.find('\0'), input.size());
  grammar::Source source;
  source.kind = static_cast<grammar::Source::Kind>(data[0] % 6);
  source.text = input.substr(0, split);
  if (source.kind == grammar::Source::Kind::kChoice) source.choices = {source.text, "b"};
  if (source.kind == grammar::Source::Kind::kAnyText || data[0] % 16 == 7) {
    source.calls = {{{"f", source.text}, {"g", ""}}, kOpen, kClose, kBos, data[0] % 4 < 2, true};
  }
  if (data[0] >= 128) source.thought = {kOpen, kClose};
  const auto compiled = compiler.compile(source);
  if (!compiled.ok()) {
    require(!compiled.status().message().empty());
    return 0;
  }
  walk(*compiled, input.substr(std::min(split + 1, input.size())));
  return 0;
}
