// Any bytes as text: encoding must not fail, and decoding must give the sanitized text back. Any
// bytes as a small vocabulary: it is refused or works.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/utf8.h"
#include "tandem/tokenizer/stream_decoder.h"
#include "tandem/tokenizer/tokenizer.h"

namespace {

using namespace tandem;
using tokenizer::TokenKind;

/// All byte tokens, then control tokens and merges spelled by the input: a line each, `+LEFT RIGHT`
/// for a merge, which adds its whole, and `TEXT` for a token whose kind follows from its first
/// byte.
tokenizer::VocabData vocab_from(std::string_view lines) {
  tokenizer::VocabData data;
  const auto add = [&data](std::string token, TokenKind kind) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(kind);
  };
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    add(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", TokenKind::kByte);
  }
  for (const char* token : {"<bos>", "<|turn>", "<turn|>", "<|\"|>"})
    add(token, TokenKind::kControl);
  for (const char* token : {"a", "b", "c", "\xE2\x96\x81", "\n"}) add(token, TokenKind::kNormal);
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const std::size_t space = line.find(' ');
    if (line.starts_with('+') && space != std::string_view::npos) {
      data.merges.emplace_back(line.substr(1, space - 1), line.substr(space + 1));
      add(data.merges.back().first + data.merges.back().second, TokenKind::kNormal);
    } else if (!line.empty()) {
      add(std::string(line), line[0] % 2 == 0 ? TokenKind::kControl : TokenKind::kNormal);
    }
  }
  return data;
}

void require(bool condition) {
  if (!condition) __builtin_trap();
}

void check(const tokenizer::Tokenizer& tokenizer, std::string_view text, bool match_special) {
  tokenizer::StreamDecoder decoder(tokenizer, true);
  std::string bytes, streamed;
  for (const TokenId id : tokenizer.encode(text, match_special)) {
    require(match_special || tokenizer.kind(id) == TokenKind::kNormal ||
            tokenizer.kind(id) == TokenKind::kByte);
    bytes += tokenizer.bytes(id);
    streamed += decoder.push(id);
  }
  streamed += decoder.flush();
  require(streamed == core::sanitize_utf8(bytes));
  std::string expected = core::sanitize_utf8(text);
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  for (std::size_t at = 0; (at = expected.find(kSpace, at)) != std::string::npos;) {
    expected.replace(at, kSpace.size(), " ");
  }
  // A special token may be spelled with bytes that are no text, or with the space's piece.
  if (!match_special) require(streamed == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t split = std::min(input.find('\0'), input.size());
  // Making a tokenizer costs far more than encoding with it, so the last one is kept.
  static const auto fallback = tokenizer::Tokenizer::create(vocab_from({}));
  static auto made = fallback;
  static std::string last_lines;
  if (const auto lines = input.substr(0, split); lines != last_lines) {
    made = tokenizer::Tokenizer::create(vocab_from(lines));
    if (!made.ok()) made = fallback;
    last_lines = lines;
  }
  const std::string_view text = input.substr(std::min(split + 1, input.size()));
  check(**made, text, false);
  check(**made, text, true);
  return 0;
}
