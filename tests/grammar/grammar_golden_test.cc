#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <set>
#include <string>

#include "grammar_rig.h"

namespace tandem::grammar {
namespace {

using testing::compiler;
using testing::matches;
using testing::source;
using testing::string_at;

std::vector<std::string> texts_at(const boost::json::object& entry, std::string_view key) {
  std::vector<std::string> out;
  for (const auto& text : entry.at(key).as_array()) out.emplace_back(text.as_string());
  return out;
}

/// Schemas of the golden that are refused, with a sentence: one that allows nothing, and one whose
/// elements, of any kind, would all have to be remembered.
const std::set<std::string> kRefused = {"false-schema", "array-unique"};

TEST(GrammarGolden, SchemasAcceptTheValidAndRefuseTheInvalid) {
  int num_lines = 0, num_refused = 0, num_valid = 0, num_accepted = 0;
  for (const std::string& path : testing::golden_text_files("json-schema")) {
    for (const auto& line : testing::read_jsonl(path)) {
      ++num_lines;
      const auto& entry = line.as_object();
      const std::string name = string_at(entry, "name");
      SCOPED_TRACE(name);
      const auto grammar = compiler().compile(
          source(Source::Kind::kJsonSchema, boost::json::serialize(entry.at("schema"))));
      EXPECT_EQ(grammar.ok(), !kRefused.contains(name)) << grammar.status().message();
      num_refused += grammar.ok() ? 0 : 1;
      if (!grammar.ok()) continue;
      const int before = num_accepted;
      for (const std::string& text : texts_at(entry, "valid")) {
        ++num_valid;
        if (matches(*grammar, text)) ++num_accepted;
      }
      EXPECT_GT(num_accepted, before) << "accepts none of the valid texts";
      for (const std::string& text : texts_at(entry, "invalid")) {
        EXPECT_FALSE(matches(*grammar, text)) << text;
      }
    }
  }
  EXPECT_GT(num_lines, 80);
  EXPECT_EQ(num_refused, static_cast<int>(kRefused.size()));
  // Those left out: keys in another order, and keys that a schema does not name.
  EXPECT_GT(num_accepted, num_valid * 9 / 10) << num_accepted << " of " << num_valid;
}

TEST(GrammarGolden, GbnfMatchesAndRefuses) {
  int num_lines = 0;
  for (const std::string& path : testing::golden_text_files("gbnf")) {
    for (const auto& line : testing::read_jsonl(path)) {
      ++num_lines;
      const auto& entry = line.as_object();
      SCOPED_TRACE(string_at(entry, "name"));
      const auto grammar =
          compiler().compile(source(Source::Kind::kGbnf, string_at(entry, "grammar")));
      EXPECT_EQ(grammar.ok(), !entry.contains("invalid")) << grammar.status().message();
      if (!grammar.ok()) continue;
      for (const std::string& text : texts_at(entry, "accept")) {
        EXPECT_TRUE(matches(*grammar, text)) << text;
      }
      for (const std::string& text : texts_at(entry, "reject")) {
        EXPECT_FALSE(matches(*grammar, text)) << text;
      }
    }
  }
  EXPECT_GT(num_lines, 30);
}

}  // namespace
}  // namespace tandem::grammar
