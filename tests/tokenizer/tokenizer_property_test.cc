// Laws of encoding and decoding, on random texts over random small vocabularies and over the real
// one.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tandem/core/utf8.h"
#include "tandem/tokenizer/stream_decoder.h"
#include "tandem/tokenizer/tokenizer.h"
#include "vocab_fixture.h"

namespace tandem::tokenizer {
namespace {

using core::decode_utf8;
using core::sanitize_utf8;
using MergeList = std::vector<std::pair<std::string, std::string>>;

/// A text of fragments that matter here: characters in and outside a small vocabulary, ill-formed
/// and cut UTF-8, special tokens and parts of them.
rc::Gen<std::string> arbitrary_text() {
  const auto fragment = rc::gen::weightedOneOf<std::string>(
      {{6, rc::gen::element<std::string>("a", "b", "c", "d", "e", " ", "\n")},
       {2, rc::gen::element<std::string>("\xC3\xA9", "\xE2\x96\x81", "\xE2\x82\xAC",
                                         "\xF0\x9F\x98\x80")},
       {1, rc::gen::element<std::string>("<bos>", "<|turn>", "<turn|>", "<turn", "<|channel>", "<",
                                         "|", ">", "<0x41>")},
       {1, rc::gen::container<std::string>(2, rc::gen::arbitrary<char>())}});
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(fragment),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const auto& part : parts) text += part;
                        return text;
                      });
}

/// Merges that build on each other, in random order of their parts.
MergeList arbitrary_merges() {
  std::vector<std::string> parts = {"a", "b", "c", "\xE2\x96\x81", "\n", "\xC3\xA9"};
  MergeList merges;
  const auto count = *rc::gen::inRange(0, 25);
  for (int i = 0; i < count; ++i) {
    const auto left = parts[*rc::gen::inRange<std::size_t>(0, parts.size())];
    const auto right = parts[*rc::gen::inRange<std::size_t>(0, parts.size())];
    if (left.size() + right.size() > 24) continue;
    merges.emplace_back(left, right);
    parts.push_back(left + right);
  }
  return merges;
}

std::shared_ptr<const Tokenizer> make(const MergeList& merges) {
  return std::move(Tokenizer::create(tandem::testing::small_vocab(merges))).value();
}

std::string spaces_for_pieces(std::string text) {
  const std::string space = "\xE2\x96\x81";
  for (std::size_t at = 0; (at = text.find(space, at)) != std::string::npos;) {
    text.replace(at, space.size(), " ");
  }
  return text;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamDecoder decoder(tokenizer, true);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  return text + decoder.flush();
}

/// BPE as the textbook has it: join the first of the best pairs, look again.
std::vector<TokenId> encode_naively(const Tokenizer& tokenizer, const MergeList& merges,
                                    const std::string& text) {
  std::vector<std::string> symbols;
  std::string_view rest = text;
  for (; !rest.empty(); rest.remove_prefix(decode_utf8(rest).length)) {
    symbols.emplace_back(rest[0] == ' ' ? "\xE2\x96\x81"
                                        : rest.substr(0, decode_utf8(rest).length));
  }
  for (std::size_t rank = 0; rank < merges.size();) {
    const auto at = std::adjacent_find(symbols.begin(), symbols.end(), [&](auto& a, auto& b) {
      return a == merges[rank].first && b == merges[rank].second;
    });
    if (at == symbols.end()) {
      ++rank;
      continue;
    }
    *at += *(at + 1);
    symbols.erase(at + 1);
    rank = 0;
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) {
    if (const TokenId id = tokenizer.find(symbol); id >= 0) {
      ids.push_back(id);
      continue;
    }
    for (const char byte : symbol) {
      constexpr TokenId kFirstByteToken = 8;  // of small_vocab
      ids.push_back(kFirstByteToken + static_cast<unsigned char>(byte));
    }
  }
  return ids;
}

TEST(TokenizerProperty, EncodesAsTheTextbookDoes) {
  EXPECT_TRUE(rc::check([] {
    const MergeList merges = arbitrary_merges();
    const auto tokenizer = make(merges);
    const std::string text = sanitize_utf8(*arbitrary_text());
    RC_ASSERT(tokenizer->encode(text, false) == encode_naively(*tokenizer, merges, text));
  }));
}

TEST(TokenizerProperty, EncodesLongWordsAsTheTextbookDoes) {
  EXPECT_TRUE(rc::check([] {
    const MergeList merges = arbitrary_merges();
    const auto tokenizer = make(merges);
    const auto text = *rc::gen::container<std::string>(200, rc::gen::element('a', 'b', 'c', ' '));
    RC_ASSERT(tokenizer->encode(text, false) == encode_naively(*tokenizer, merges, text));
  }));
}

TEST(TokenizerProperty, DecodesToTheSanitizedText) {
  EXPECT_TRUE(rc::check([] {
    const std::string text = *arbitrary_text();
    const bool match_special = *rc::gen::arbitrary<bool>();
    const std::string expected = spaces_for_pieces(sanitize_utf8(text));
    const Tokenizer& real = tandem::testing::real_tokenizer();
    RC_ASSERT(decode(real, real.encode(text, match_special)) == expected);
    const auto small = make(arbitrary_merges());
    RC_ASSERT(decode(*small, small->encode(text, match_special)) == expected);
  }));
}

TEST(TokenizerProperty, EncodesASplitTextAsTheWhole) {
  EXPECT_TRUE(rc::check([] {
    const Tokenizer& real = tandem::testing::real_tokenizer();
    const std::string text = *arbitrary_text();
    const bool match_special = *rc::gen::arbitrary<bool>();
    std::vector<TextPiece> pieces;
    std::size_t from = 0;
    while (from < text.size()) {
      const auto length = *rc::gen::inRange<std::size_t>(1, 12);
      pieces.push_back({text.substr(from, length), match_special});
      from += length;
    }
    RC_ASSERT(real.encode(pieces) == real.encode(text, match_special));
  }));
}

TEST(TokenizerProperty, UserTextNeverBecomesASpecialToken) {
  EXPECT_TRUE(rc::check([] {
    const Tokenizer& real = tandem::testing::real_tokenizer();
    for (const TokenId id : real.encode(*arbitrary_text(), false)) {
      RC_ASSERT(real.kind(id) == TokenKind::kNormal || real.kind(id) == TokenKind::kByte);
    }
  }));
}

TEST(TokenizerProperty, StreamsTheSameTextHoweverItComes) {
  EXPECT_TRUE(rc::check([] {
    const Tokenizer& demo = tandem::testing::demo_tokenizer();
    const auto ids = *rc::gen::container<std::vector<TokenId>>(
        rc::gen::oneOf(rc::gen::inRange<TokenId>(0, 600), rc::gen::inRange(0, demo.vocab_size())));
    std::string bytes;
    StreamDecoder decoder(demo, true);
    std::string streamed;
    for (const TokenId id : ids) {
      bytes += demo.bytes(id);
      const std::string piece = decoder.push(id);
      RC_ASSERT(sanitize_utf8(piece) == piece);
      streamed += piece;
    }
    RC_ASSERT(streamed + decoder.flush() == sanitize_utf8(bytes));
  }));
}

}  // namespace
}  // namespace tandem::tokenizer
