// What a schema's grammar allows is valid, whatever tokens are chosen; and a text can always be
// finished.

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <random>
#include <string>

#include "grammar_rig.h"
#include "random_tokens.h"
#include "schema_validator.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;
void expect_only_valid_texts(const json::value& schema, std::mt19937& random, int num_texts,
                             int& num_ended) {
  const auto grammar = testing::compiler().compile(
      testing::source(Source::Kind::kJsonSchema, json::serialize(schema)));
  if (!grammar.ok()) return;
  TrieWalker walker;
  for (int i = 0; i < num_texts; ++i) {
    const auto tokens = testing::random_tokens(*grammar, random, walker);
    if (!tokens) continue;
    ++num_ended;
    std::string text;
    for (const TokenId token : *tokens) text += testing::real_tokenizer().bytes(token);
    boost::system::error_code error;
    const json::value value = json::parse(text, error);
    ASSERT_FALSE(error) << text;
    EXPECT_TRUE(testing::is_valid(value, schema, schema)) << text;
  }
}

TEST(SchemaProperty, GoldenSchemasOnlyAllowValidTexts) {
  std::mt19937 random(3);
  int num_ended = 0, num_schemas = 0;
  for (const std::string& path : testing::golden_text_files("json-schema")) {
    for (const auto& line : testing::read_jsonl(path)) {
      SCOPED_TRACE(testing::string_at(line.as_object(), "name"));
      ++num_schemas;
      expect_only_valid_texts(line.at("schema"), random, 4, num_ended);
    }
  }
  EXPECT_GT(num_ended, num_schemas * 2);
}

/// Schemas of the keywords together.
class SchemaMaker {
 public:
  explicit SchemaMaker(unsigned seed) : random_(seed) {}

  json::value make(int depth) {
    switch (pick(depth > 2 ? 7 : 11)) {
      case 0:
        return {{"type", "string"}, {"minLength", pick(3)}, {"maxLength", 2 + pick(5)}};
      case 1:
        return {
            {"type", "integer"}, {"minimum", pick(2000) - 1000}, {"maximum", 1000 + pick(9000)}};
      case 2:
        return {
            {"type", "number"}, {"exclusiveMinimum", pick(40) - 20}, {"maximum", 20.5 + pick(9)}};
      case 3:
        return {{"enum", {pick(5), "a\"b", nullptr, true, 2.5}}};
      case 4:
        return {{"type", {"boolean", "null", "integer"}}, {"exclusiveMaximum", pick(100) - 50}};
      case 5:
        return {{"type", "string"}, {"pattern", pick(2) == 0 ? "^[a-c]{2,4}$" : "x+[0-9]"}};
      case 6:
        return json::object{};
      case 7:
        return {{"type", "array"},
                {"items", make(depth + 1)},
                {"minItems", pick(3)},
                {"maxItems", 2 + pick(3)}};
      case 8:
        return {{"type", "array"},
                {"prefixItems", {make(depth + 1), make(depth + 1)}},
                {"items", pick(2) == 0 ? json::value(false) : make(depth + 1)},
                {"minItems", pick(3)}};
      case 9:
        return {{"anyOf", {make(depth + 1), make(depth + 1)}}};
      default:
        return make_object(depth);
    }
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  json::value make_object(int depth) {
    json::object properties;
    json::array required;
    for (const char* name : {"a", "ab", "b\"c", "é"}) {
      if (pick(3) == 0) continue;
      properties[name] = make(depth + 1);
      if (pick(2) == 0) required.emplace_back(name);
    }
    json::object schema = {{"type", "object"}, {"properties", properties}, {"required", required}};
    const int additional = pick(3);
    if (additional == 0) schema["additionalProperties"] = false;
    if (additional == 1) schema["additionalProperties"] = make(depth + 1);
    return schema;
  }

  std::mt19937 random_;
};

TEST(SchemaProperty, RandomSchemasOnlyAllowValidTexts) {
  std::mt19937 random(5);
  int num_ended = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const json::value schema = SchemaMaker(seed).make(0);
    SCOPED_TRACE(json::serialize(schema));
    expect_only_valid_texts(schema, random, 4, num_ended);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_ended, 120);
}

}  // namespace
}  // namespace tandem::grammar
