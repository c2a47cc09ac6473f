// Under a grammar, too, drafts change nothing; and what ends, is valid.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model_rig.h"
#include "schema_validator.h"
#include "support.h"
#include "tandem/grammar/compiler.h"
#include "tandem/grammar/matcher.h"

namespace tandem::engine {
namespace {

using grammar::Source;
using testing::demo_path;
using testing::demo_prompts;
using testing::expect_same;
using testing::load_served;
using testing::Loaded;
using testing::Outputs;
using testing::serve;
using testing::serve_alone;

constexpr const char* kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"kind":{"enum":["a","bc",1]},
    "list":{"type":"array","items":{"type":"integer","minimum":-5,"maximum":500},"maxItems":3}},
    "required":["name","list"],"additionalProperties":false})";

Source source(Source::Kind kind, std::string text) {
  Source out;
  out.kind = kind;
  out.text = std::move(text);
  return out;
}

std::vector<Source> sources() {
  std::vector<Source> out = {source(Source::Kind::kJsonSchema, kSchema),
                             source(Source::Kind::kRegex, "[a-z]{2,6}( [0-9]+)?"),
                             source(Source::Kind::kGbnf,
                                    "root ::= \"(\" root \")\" | [a-f]{1,4} | root2\n"
                                    "root2 ::= \"x\" root \"y\""),
                             source(Source::Kind::kChoice, ""),
                             source(Source::Kind::kJsonObject, "")};
  out[3].choices = {"yes", "no", "not at all"};
  return out;
}

/// What was said must be a text of the grammar, or the beginning of one where tokens ran out.
void expect_valid(const Request& request, const testing::Said& said, bool is_schema) {
  grammar::Matcher matcher(request.grammar);
  for (const TokenId token : said.tokens) ASSERT_TRUE(matcher.accept(token)) << said.text;
  EXPECT_EQ(matcher.is_finished(), said.finish == FinishReason::kStop) << said.text;
  if (said.finish != FinishReason::kStop) {
    EXPECT_EQ(said.finish, FinishReason::kLength);
  } else if (is_schema) {
    const boost::json::value schema = boost::json::parse(kSchema);
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(said.text, error);
    ASSERT_FALSE(error) << said.text;
    EXPECT_TRUE(testing::is_valid(value, schema, schema)) << said.text;
  }
}

class GrammarOnTinyModels : public testing::PerBackend {};

TEST_P(GrammarOnTinyModels, DraftsChangeNothingAndWhatEndsIsValid) {
  int num_ended = 0;
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const Loaded loaded = load_served(entry.model_path, entry.draft_path(), GetParam(), 64);
    if (loaded.model == nullptr) continue;
    grammar::Compiler compiler(*loaded.tokenizer);
    std::mt19937 random(11);
    std::vector<Request> requests;
    for (int i = 0; i < 15; ++i) {
      Request request;
      request.id = static_cast<std::uint64_t>(i) + 1;
      for (int j = 0; j < 5 + i; ++j) {
        request.prompt.push_back(3 + static_cast<TokenId>(random() % 200));
      }
      request.max_tokens = 50;
      request.sampling = {.temperature = i % 3 == 0 ? 0.0F : 0.8F, .seed = random()};
      if (i % 4 == 1) request.penalties = {.presence = 0.5F, .frequency = 0.5F, .repetition = 1.1F};
      if (i % 4 == 2) request.min_tokens = 10;
      if (i % 4 == 3) request.logprobs = 2;
      const auto made = compiler.compile(sources()[static_cast<std::size_t>(i % 5)]);
      ASSERT_TRUE(made.ok()) << made.status().message();
      request.grammar = *made;
      requests.push_back(std::move(request));
    }
    const Outputs expected = serve_alone(*loaded.model, *loaded.tokenizer, requests);
    for (const Request& request : requests) {
      const testing::Said& said = expected.at(request.id);
      expect_valid(request, said, request.id % 5 == 1);
      num_ended += said.finish == FinishReason::kStop;
    }
    for (int k = 0; k <= 6; ++k) {
      const EngineOptions options = {.draft_length = k, .prefill_chunk = 7 + k};
      expect_same(expected,
                  serve(*loaded.model, *loaded.tokenizer, options, requests, k % 2, 7).outputs,
                  fmt::format("k {}", k));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(num_ended, 0);
}

TANDEM_FOR_EACH_BACKEND(Backend, GrammarOnTinyModels);

TEST(GrammarOnDemo, DraftsChangeNothingAndKeepTheirAcceptance) {
  const Loaded loaded =
      load_served(demo_path(testing::kDemoTarget), demo_path(testing::kDemoDrafter), "cpu", 512);
  ASSERT_NE(loaded.model, nullptr);
  grammar::Compiler compiler(*loaded.tokenizer);
  const auto made = compiler.compile(source(Source::Kind::kJsonSchema, kSchema));
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto prompts = demo_prompts(*loaded.tokenizer, 16);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.id = i + 1;
    request.prompt = prompts[i];
    request.max_tokens = 60;
    request.sampling = {.temperature = i % 2 == 0 ? 0.0F : 0.7F, .seed = i};
    request.grammar = *made;
    requests.push_back(std::move(request));
  }
  const Outputs expected = serve_alone(*loaded.model, *loaded.tokenizer, requests);
  int num_ended = 0;
  for (const Request& request : requests) {
    expect_valid(request, expected.at(request.id), true);
    num_ended += expected.at(request.id).finish == FinishReason::kStop;
  }
  EXPECT_GT(num_ended, 8);
  for (const int k : {-1, 1, 3, 6}) {
    const EngineOptions options = {.draft_length = k};
    const auto run = serve(*loaded.model, *loaded.tokenizer, options, requests);
    expect_same(expected, run.outputs, fmt::format("k {}", k));
    if (k > 0) {
      RecordProperty(fmt::format("accepted_of_{}", run.stats.drafted_at[0]),
                     static_cast<int>(run.stats.accepted_at[0]));
      EXPECT_GT(run.stats.accepted_at[0], 0U);
    }
  }
}

}  // namespace
}  // namespace tandem::engine
