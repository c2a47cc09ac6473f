// Every recorded case of tokenization and detokenization: the files say what a line means in
// tests/chat/README.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tandem/tokenizer/stream_decoder.h"
#include "tandem/tokenizer/tokenizer.h"
#include "vocab_fixture.h"

namespace tandem {
namespace {

using testing::ids_at;
using testing::string_at;
using tokenizer::Tokenizer;

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

/// The text of a line: given as it is, as a unit and a count, as bytes in hex, or as the value of a
/// JSON string literal.
std::string input_of(const boost::json::object& entry) {
  if (entry.contains("text")) return string_at(entry, "text");
  if (entry.contains("hex")) return bytes_of_hex(string_at(entry, "hex"));
  if (entry.contains("decoded")) return string_at(entry, "decoded");
  const auto& repeat = entry.at("repeat").as_array();
  std::string text;
  for (auto n = repeat.at(1).as_int64(); n > 0; --n) text += repeat.at(0).as_string();
  return text;
}

void check_tokenizer_file(const Tokenizer& tokenizer, const std::string& path) {
  int lines = 0;
  for (const auto& line : testing::read_jsonl(path)) {
    const auto& entry = line.as_object();
    const std::string text = input_of(entry);
    const auto ids = ids_at(entry, "ids");
    SCOPED_TRACE(path + ": " + string_at(entry, "name"));
    EXPECT_EQ(tokenizer.encode(text, true), ids);
    EXPECT_EQ(tokenizer.encode(text, false), ids_at(entry, "ids_plain", ids));
    ++lines;
  }
  EXPECT_GT(lines, 0) << path;
}

TEST(golden, TokenizerEncodesEveryLine) {
  const auto files = testing::golden_text_files("tokenizer-");
  ASSERT_FALSE(files.empty());
  for (const std::string& path : files) {
    const bool is_demo = path.ends_with("-demo.jsonl");
    check_tokenizer_file(is_demo ? testing::demo_tokenizer() : testing::real_tokenizer(), path);
  }
}

/// Feeds the ids one by one and compares each piece.
void check_detok(const boost::json::object& entry, bool show_control) {
  const std::string suffix = show_control || !entry.contains("pieces_skip") ? "" : "_skip";
  tokenizer::StreamDecoder decoder(testing::real_tokenizer(), show_control);
  const auto ids = ids_at(entry, "ids");
  const auto& pieces = entry.at("pieces" + suffix).as_array();
  ASSERT_EQ(ids.size(), pieces.size());
  std::string joined;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string piece = decoder.push(ids[i]);
    EXPECT_EQ(piece, pieces[i].as_string()) << "piece " << i;
    joined += piece;
  }
  const std::string last = decoder.flush();
  EXPECT_EQ(last, string_at(entry, "flush" + suffix));
  EXPECT_EQ(joined + last, string_at(entry, "text" + suffix));
}

TEST(golden, StreamDecoderGivesEveryPiece) {
  const auto files = testing::golden_text_files("detok");
  ASSERT_FALSE(files.empty());
  for (const std::string& path : files) {
    for (const auto& line : testing::read_jsonl(path)) {
      SCOPED_TRACE(path + ": " + string_at(line.as_object(), "name"));
      check_detok(line.as_object(), true);
      check_detok(line.as_object(), false);
    }
  }
}

/// A file that no golden test reads would pass unseen. The others are in tests/chat and
/// tests/grammar; each reads every line of its files.
TEST(golden, EveryTextFileHasATest) {
  const auto files = testing::golden_text_files("");
  ASSERT_FALSE(files.empty());
  for (const std::string& path : files) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const bool is_known = std::ranges::any_of(
        std::array{"chat-", "detok", "gbnf", "json-schema", "parse", "tokenizer-"},
        [&](const char* prefix) { return name.starts_with(prefix); });
    EXPECT_TRUE(is_known) << path;
    const std::string text = testing::read_file(path);
    const auto num_lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
    EXPECT_EQ(testing::read_jsonl(path).size(), num_lines) << path;
  }
}

TEST(golden, TokenizerMatchesLlamaCppVocabularyTest) {
  const std::string base = TANDEM_SOURCE_DIR "/tests/data/ggml-vocab-gemma-4.gguf";
  const std::string input = testing::read_file(base + ".inp");
  std::istringstream expected(testing::read_file(base + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  for (std::size_t from = 0; from <= input.size();) {
    const std::size_t end = std::min(input.find(separator, from), input.size());
    const std::string text = input.substr(from, end - from);
    from = end + separator.size();
    std::string line;
    ASSERT_TRUE(std::getline(expected, line)) << "no ids for: " << text;
    std::istringstream numbers(line);
    const std::vector<TokenId> ids{std::istream_iterator<TokenId>(numbers), {}};
    EXPECT_EQ(testing::real_tokenizer().encode(text, false), ids) << text;
  }
}

}  // namespace
}  // namespace tandem
