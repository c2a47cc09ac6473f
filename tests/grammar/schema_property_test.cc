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

/// What not, contains and oneOf allow: text by text.
struct ExactCase {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

const std::vector<ExactCase> kExactCases = {
    {R"({"not":{"enum":[0,"a",null,true]},"type":["integer","string","null","boolean"]})",
     {"1", "-1", "10", "\"b\"", "\"\"", "\"ab\"", "false"},
     {"0", "-0", "\"a\"", "null", "true", "\"\\u0061\""}},
    {R"({"not":{"const":2},"type":"number","minimum":0,"maximum":4})",
     {"0", "1", "3", "4", "1.5"},
     {"2", "2.0", "2e0", "20e-1", "5"}},
    {R"({"not":{"type":["string","object","array"]}})", {"1", "null", "true"}, {"\"\"", "{}"}},
    {R"({"not":{"type":"string","enum":["a",5]}})", {"5", "\"b\"", "[\"a\"]"}, {"\"a\""}},
    {R"({"enum":["a","b",3],"not":{"const":"b"}})", {"\"a\"", "3"}, {"\"b\""}},
    {R"({"type":"array","contains":{"const":7}})",
     {"[7]", "[1,7]", "[7,7]", "[[],7,1]"},
     {"[]", "[1]", "[[7]]"}},
    {R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":5},"minItems":2,)"
     R"("maxItems":3})",
     {"[5,1]", "[1,5]", "[1,2,9]", "[9,9,9]"},
     {"[5]", "[1,2]", "[1,2,3]", "[1,2,3,5]", "[\"a\",5]"}},
    {R"({"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"},)"
     R"("contains":{"type":"integer"}})",
     {"[\"a\",1]", "[\"a\",1,2]"},
     {"[\"a\"]", "[1]", "[]", "[\"a\",\"b\"]"}},
    {R"({"type":"array","contains":{"const":7},"minContains":0})", {"[]", "[7]"}, {"7"}},
    {R"({"oneOf":[{"type":"integer","maximum":3},{"type":"integer","exclusiveMinimum":3}]})",
     {"3", "4", "-7"},
     {"3.5"}},
    {R"({"oneOf":[{"type":"string","maxLength":2},{"type":"string","minLength":4}]})",
     {"\"ab\"", "\"abcd\""},
     {"\"abc\""}},
    {R"({"oneOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],)"
     R"("additionalProperties":false},{"type":"object","properties":{"b":{"type":"integer"}},)"
     R"("required":["b"],"additionalProperties":false}]})",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
};

TEST(SchemaProperty, ComplementsAndContainedElementsAreExact) {
  for (const ExactCase& each : kExactCases) {
    SCOPED_TRACE(each.schema);
    const auto grammar =
        testing::compiler().compile(testing::source(Source::Kind::kJsonSchema, each.schema));
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    const json::value schema = json::parse(each.schema);
    for (const char* text : each.valid) {
      EXPECT_TRUE(testing::is_valid(json::parse(text), schema, schema)) << text;
      EXPECT_TRUE(testing::matches(*grammar, text)) << text;
    }
    for (const char* text : each.invalid) EXPECT_FALSE(testing::matches(*grammar, text)) << text;
  }
}

TEST(SchemaProperty, WhatHasNoExactAutomatonIsRefused) {
  for (const char* schema :
       {R"({"not":{"required":["a"]}})", R"({"not":{"not":{"const":1}}})",
        R"({"not":{"const":[]},"type":"array"})",
        R"({"type":"string","minLength":2,"not":{"const":"ab"}})",
        R"({"type":"array","contains":{"const":1},"minContains":2})",
        R"({"type":"array","contains":{"const":1},"maxContains":2})",
        R"({"type":"array","contains":{"const":1},"maxItems":33})",
        R"({"oneOf":[{"const":1},{"enum":[1.0,2]}]})",
        R"({"oneOf":[{"type":"object","properties":{"a":{}},"required":["a"]},)"
        R"({"type":"object","patternProperties":{"^a":{}},"additionalProperties":false}]})",
        R"({"oneOf":[{"type":"number"},{"type":"integer"}]})"}) {
    const auto grammar =
        testing::compiler().compile(testing::source(Source::Kind::kJsonSchema, schema));
    EXPECT_FALSE(grammar.ok()) << schema;
    EXPECT_NE(grammar.status().message().find("cannot be kept"), std::string::npos)
        << grammar.status().message();
  }
}

/// Schemas of the keywords together.
class SchemaMaker {
 public:
  explicit SchemaMaker(unsigned seed) : random_(seed) {}

  json::value make(int depth) {
    switch (pick(depth > 2 ? 9 : 14)) {
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
        return {{"type", {"integer", "string", "null", "boolean"}},
                {"not", {{"enum", {0, 3, "a", "ab", true, nullptr, -12.0, 2.5}}}}};
      case 8:
        return {{"type", {"number", "boolean"}}, {"not", {{"const", pick(3)}}}, {"maximum", 40}};
      case 9:
        return {{"type", "array"},
                {"contains", make(depth + 1)},
                {"items", pick(2) == 0 ? json::value(true) : make(3)},
                {"minItems", pick(4)}};
      case 10:
        return {{"oneOf",
                 {{{"type", "integer"}, {"maximum", pick(9)}},
                  {{"type", "integer"}, {"minimum", 9}},
                  {{"type", "object"},
                   {"properties", {{"k", {{"type", "string"}}}, {"v", make(depth + 1)}}},
                   {"required", {"k"}}},
                  {{"type", "object"},
                   {"properties", {{"k", {{"type", "null"}}}}},
                   {"required", {"k", "w"}}}}}};
      case 11:
        return {{"type", "array"},
                {"items", make(depth + 1)},
                {"minItems", pick(3)},
                {"maxItems", 2 + pick(3)}};
      case 12:
        return {{"type", "array"},
                {"prefixItems", {make(depth + 1), make(depth + 1)}},
                {"items", pick(2) == 0 ? json::value(false) : make(depth + 1)},
                {"minItems", pick(3)}};
      case 13:
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
  for (unsigned seed = 0; seed < 80; ++seed) {
    const json::value schema = SchemaMaker(seed).make(0);
    SCOPED_TRACE(json::serialize(schema));
    expect_only_valid_texts(schema, random, 4, num_ended);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_ended, 160);
}

}  // namespace
}  // namespace tandem::grammar
