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
  if (!grammar.ok()) {
    EXPECT_FALSE(grammar.status().message().empty());
    return;
  }
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

/// What combinations of keywords allow: text by text.
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
    {R"({"oneOf":[{"const":1},{"enum":[1.0,2]}]})", {"2"}, {"1", "1.0", "3"}},
    {R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", {"1.5", "-0.25"}, {"1", "1.0", "\"\""}},
    {R"({"oneOf":[{"type":"integer","multipleOf":3},{"type":"integer","multipleOf":5}]})",
     {"3", "5", "9", "-10", "12"},
     {"15", "2", "0", "-30"}},
    {R"({"oneOf":[{"type":"number","minimum":0,"maximum":2},{"type":"number","minimum":1}]})",
     {"0", "0.5", "2.01", "7"},
     {"1", "1.5", "2", "-1"}},
    {R"({"oneOf":[{"oneOf":[{"type":"null"},{"type":"string"}]},{"type":"integer"}]})",
     {"null", "\"a\"", "4"},
     {"true", "1.5"}},
    {R"({"oneOf":[{"type":["string","null"]},{"type":["integer","null"]}]})",
     {"\"\"", "1"},
     {"null", "true"}},
    {R"({"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":2}]})",
     {"\"\"", "\"a\"", "\"abcd\""},
     {"\"ab\"", "\"abc\""}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},)"
     R"("oneOf":[{"required":["a"]},{"required":["b"]}]})",
     {R"({"a":1})", R"({"b":1})"},
     {"{}", R"({"a":1,"b":1})"}},
    {R"({"type":"object","properties":{"t":{"enum":["a","b"]},"v":{"type":"integer"}},)"
     R"("required":["t"],"if":{"properties":{"t":{"const":"a"}}},"then":{"required":["v"]}})",
     {R"({"t":"a","v":1})", R"({"t":"b"})", R"({"t":"b","v":1})"},
     {R"({"t":"a"})", R"({"t":"c"})", "{}"}},
    {R"({"type":"object","properties":{"n":{"type":"integer"},"u":{"type":"string"}},)"
     R"("required":["n"],"if":{"properties":{"n":{"minimum":10}},"required":["n"]},)"
     R"("then":{"properties":{"u":{"const":"big"}}},"else":{"properties":{"u":false}}})",
     {R"({"n":10,"u":"big"})", R"({"n":10})", R"({"n":9})"},
     {R"({"n":9,"u":"big"})", R"({"n":11,"u":"x"})"}},
    {R"({"if":{"type":"string"},"then":{"maxLength":1},"else":{"type":"null"}})",
     {"\"\"", "\"a\"", "null"},
     {"\"ab\"", "1"}},
    {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},)"
     R"("dependentRequired":{"a":["b"]}})",
     {"{}", R"({"b":null})", R"({"a":null,"b":null})"},
     {R"({"a":null})"}},
    {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":["null","boolean"]}},)"
     R"("dependentSchemas":{"a":{"properties":{"b":{"const":true}}}}})",
     {"{}", R"({"b":null})", R"({"a":null})", R"({"a":null,"b":true})"},
     {R"({"a":null,"b":null})"}},
    {R"({"not":{"not":{"const":1}}})", {"1"}, {"2"}},
    {R"({"not":{"required":["a"]},"type":"object"})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"not":{"required":["a"]}})",
     {"{}"},
     {R"({"a":1})"}},
    {R"({"type":"integer","not":{"minimum":3,"maximum":5}})", {"2", "6", "-4"}, {"3", "4", "5"}},
    {R"({"type":"integer","not":{"anyOf":[{"multipleOf":2},{"multipleOf":3}]}})",
     {"1", "5", "7", "-11"},
     {"2", "3", "6", "0"}},
    {R"({"type":"array","items":{"type":"integer"},"not":{"items":{"minimum":0}}})",
     {"[-1]", "[1,-1,2]"},
     {"[]", "[1]", "[\"a\"]"}},
    {R"({"type":"array","items":{"type":"integer"},"not":{"contains":{"const":1}}})",
     {"[]", "[2,3]"},
     {"[1]", "[2,1]"}},
    {R"({"type":"array","items":{"type":"integer","maximum":9},"contains":{"minimum":5},)"
     R"("minContains":2,"maxContains":3})",
     {"[5,6]", "[1,5,2,6]", "[5,5,5,1]"},
     {"[5]", "[1,5]", "[5,5,5,5]", "[]"}},
    {R"({"type":"array","contains":{"type":"null"},"minContains":0,"maxContains":1,"maxItems":3})",
     {"[]", "[1]", "[null]", "[1,null,2]"},
     {"[null,null]", "[1,2,3,4]"}},
    {R"({"type":"array","items":{"enum":["a","b",3]},"uniqueItems":true})",
     {"[]", "[\"a\"]", "[3,\"a\",\"b\"]", "[\"b\",3]"},
     {"[3,3]", "[\"a\",\"b\",\"a\"]", "[\"c\"]", "[3.0]"}},
    {R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":5},"uniqueItems":true,)"
     R"("minItems":2,"maxItems":3})",
     {"[1,2]", "[5,3,1]"},
     {"[]", "[1]", "[2,2]", "[1,2,3,4]", "[0,1]"}},
    {R"({"type":"array","prefixItems":[{"const":1}],"items":{"enum":[1,2,true]},)"
     R"("uniqueItems":true})",
     {"[]", "[1]", "[1,2]", "[1,true,2]"},
     {"[2]", "[1,1]", "[1,2,2]"}},
    {R"({"type":"array","items":{"anyOf":[{"type":"boolean"},{"type":"null"}]},)"
     R"("uniqueItems":true,"minItems":3})",
     {"[true,null,false]"},
     {"[true,true,null]", "[true,false]"}},
    {R"({"enum":[1,5,"abc","a",null,[1,2],[1],{"k":1},{}],"maximum":3,"maxLength":2,)"
     R"("minItems":2,"required":["k"]})",
     {"1", "\"a\"", "null", "[1,2]", R"({"k":1})"},
     {"5", "\"abc\"", "[1]", "{}"}},
    {R"({"anyOf":[{"type":"integer"},{"type":"string"}],"allOf":[{"anyOf":[{"minimum":3},)"
     R"({"maximum":-3}]}]})",
     {"3", "-4", "\"a\""},
     {"0", "null"}},
    {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},)"
     R"("c":{"type":"null"}},"minProperties":2})",
     {R"({"a":null,"b":null})", R"({"a":null,"c":null})", R"({"a":null,"b":null,"c":null})"},
     {"{}", R"({"b":null})"}},
    {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},)"
     R"("c":{"type":"null"}},"required":["b"],"maxProperties":2})",
     {R"({"b":null})", R"({"a":null,"b":null})", R"({"b":null,"c":null})"},
     {"{}", R"({"a":null,"c":null})", R"({"a":null,"b":null,"c":null})"}},
    {R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":4})",
     {"\"ab\"", "\"abcd\""},
     {"\"a\"", "\"abcde\"", "\"aB\"", "\"\""}},
    {R"({"type":"string","pattern":"b","maxLength":3})",
     {"\"b\"", "\"abc\"", "\"\\nb\"", "\"b\xE6\x97\xA5\xE6\x9C\xAC\""},
     {"\"\"", "\"ac\"", "\"aaab\""}},
    {R"({"type":"string","allOf":[{"pattern":"^a"},{"pattern":"c$"},{"pattern":"b"}],"maxLength":5})",
     {"\"abc\"", "\"axbyc\""},
     {"\"ac\"", "\"bc\"", "\"ab\"", "\"aabbcc\""}},
    {R"({"type":"string","format":"date","pattern":"^2024"})",
     {"\"2024-02-29\""},
     {"\"2023-01-01\"", "\"2024-02-30\"", "\"2024\""}},
    {R"({"type":"string","minLength":2,"not":{"const":"ab"}})",
     {"\"aa\"", "\"abc\"", "\"\\\"\\\\\""},
     {"\"a\"", "\"ab\""}},
    {R"({"type":"string","not":{"pattern":"[0-9]"},"maxLength":3})",
     {"\"\"", "\"abc\""},
     {"\"a1\"", "\"abcd\""}},
    {R"({"oneOf":[{"type":"string","pattern":"^a"},{"type":"string","pattern":"z$"}]})",
     {"\"a\"", "\"ab\"", "\"z\"", "\"bz\""},
     {"\"az\"", "\"b\"", "\"a z\""}},
    {R"({"if":{"type":"string","pattern":"^x"},"then":{"minLength":3}})",
     {"\"\"", "\"a\"", "\"xyz\"", "1", "null"},
     {"\"x\"", "\"xy\""}},
    {R"({"enum":["ab","b","abc",1],"pattern":"^a","type":"string"})",
     {"\"ab\"", "\"abc\""},
     {"\"b\"", "1"}},
    {R"({"type":"object","properties":{"ax":{"type":"null"}},"patternProperties":{)"
     R"("^a":{"type":["null","integer"]},"x$":{"type":["null","boolean"]}},)"
     R"("additionalProperties":{"type":"string"}})",
     {"{}", R"({"ax":null})", R"({"ab":1})", R"({"x":true})", R"({"abx":null})", R"({"q":""})"},
     {R"({"ax":1})", R"({"ab":true})", R"({"x":1})", R"({"abx":1})", R"({"q":null})"}},
    {R"({"type":"object","properties":{"id":{"type":"integer"}},"required":["id"],)"
     R"("patternProperties":{"^x-":{"type":"null"}},"additionalProperties":false})",
     {R"({"id":1})", R"({"id":1,"x-a":null,"x-b":null})"},
     {"{}", R"({"id":1,"y":null})", R"({"id":1,"x-a":2})"}},
    {R"({"type":"object","properties":{"a":{"type":"null"},"long":{"type":"null"}},)"
     R"("propertyNames":{"maxLength":2},"additionalProperties":{"type":"null"}})",
     {"{}", R"({"a":null})", R"({"a":null,"bc":null})"},
     {R"({"long":null})", R"({"bcd":null})"}},
    {R"({"type":"object","properties":{"a":false,"b":{"type":"null"}}})",
     {"{}", R"({"b":null})"},
     {R"({"a":null})"}},
    {R"({"type":"object","additionalProperties":{"type":"null"},"maxProperties":2})",
     {"{}", R"({"b":null})", R"({"x":null,"y":null})"},
     {R"({"x":null,"y":null,"z":null})", R"({"a":1})"}},
    {R"({"oneOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],)"
     R"("additionalProperties":false},{"type":"object","properties":{"b":{"type":"integer"}},)"
     R"("required":["b"],"additionalProperties":false}]})",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
};

TEST(SchemaProperty, CombinationsAreExact) {
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
  const char* const schemas[] = {
      R"({"not":{"const":[]},"type":"array"})",
      R"({"type":"array","contains":{"const":1},"maxItems":1033})",
      R"({"type":"array","uniqueItems":true})",
      R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
      R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":40},"uniqueItems":true})",
      R"({"type":"object","minProperties":2})",
      R"({"type":"object","patternProperties":{"a":{},"b":{},"c":{},"d":{},"e":{}}})",
      R"({"type":"string","pattern":"^(ab)*$","maxLength":60000})",
      R"({"oneOf":[{"type":"array","prefixItems":[{"const":1}]},{"type":"array","minItems":1}]})",
      R"({"if":{"propertyNames":{"maxLength":2}},"then":{"required":["b"]}})",
      R"({"unevaluatedProperties":false})"};
  for (const char* schema : schemas) {
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
    switch (pick(depth > 2 ? 9 : 18)) {
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
      case 14:
        return {{"oneOf", {make_deniable(depth), make_deniable(depth), make_deniable(depth)}}};
      case 15:
        return {{"if", make_deniable(depth)},
                {"then", make_deniable(depth)},
                {"else", make(depth + 1)},
                {"type", {"integer", "number", "string", "object", "null"}}};
      case 16:
        return {{"type", "array"},
                {"items", {{"enum", {1, 2, "a", nullptr, 2.5}}}},
                {"uniqueItems", true},
                {"minItems", pick(3)},
                {"maxItems", 2 + pick(3)}};
      default:
        return make_object(depth);
    }
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  /// A schema whose complement can be written.
  json::value make_deniable(int depth) {
    switch (pick(depth > 2 ? 6 : 9)) {
      case 0:
        return {{"type", "number"}, {"minimum", pick(20) - 10}, {"maximum", pick(20)}};
      case 1:
        return {{"type", "integer"}, {"multipleOf", 1 + pick(6)}};
      case 2:
        return {{"type", {"string", "null"}}, {"minLength", pick(4)}};
      case 3:
        return {{"enum", {pick(4), 7, nullptr}}};
      case 4:
        return {{"not", {{"type", {"number", "boolean"}}}}};
      case 5:
        return {{"type", "string"}, {"pattern", "^[a-e]"}, {"maxLength", 3 + pick(4)}};
      case 6:
        return {{"properties", {{"a", make_deniable(depth + 1)}, {"n", {{"type", "integer"}}}}},
                {"required", {"a"}}};
      case 7:
        return {{"type", "object"},
                {"properties", {{"a", {{"const", pick(3)}}}, {"z", true}}},
                {"dependentRequired", {{"a", {"z"}}}}};
      default:
        return {{"anyOf", {make_deniable(depth + 1), make_deniable(depth + 1)}}};
    }
  }

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
  for (unsigned seed = 0; seed < 120; ++seed) {
    const json::value schema = SchemaMaker(seed).make(0);
    SCOPED_TRACE(json::serialize(schema));
    expect_only_valid_texts(schema, random, 4, num_ended);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_ended, 240);
}

}  // namespace
}  // namespace tandem::grammar
