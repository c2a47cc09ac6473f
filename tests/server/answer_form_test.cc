// What a chat's body says of the form of its answer and of how much to think.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tandem/server/openai_types.h"

namespace tandem::server {
namespace {

using ::testing::ElementsAre;

ChatRequest chat_request(const std::string& members) {
  constexpr kernels::SamplingParams kDefaults = {.temperature = 1.0F, .top_k = 64, .top_p = 0.95F};
  auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":"Hi"}],)" + members + "}", kDefaults);
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << members << ": " << (error ? error->message : "");
  return error ? ChatRequest{} : std::get<ChatRequest>(std::move(parsed));
}
GenerationParams chat_params(const std::string& members) {
  return chat_request(members).params;
}

TEST(ChatRequest, ReadsTheFormOfTheAnswer) {
  using Kind = grammar::Source::Kind;
  const auto form_of = [](const std::string& members) {
    return chat_params(members).format.value_or(OutputFormat{{}, "none"});
  };
  EXPECT_EQ(form_of(R"("response_format":{"type":"text"},"grammar":"")").param, "none");
  EXPECT_EQ(form_of(R"("response_format":{"type":"json_object"})").source.kind, Kind::kJsonObject);
  // llama.cpp's clients put the schema beside the type.
  EXPECT_EQ(
      form_of(R"("response_format":{"type":"json_object","schema":{"type":"null"}})").source.text,
      R"({"type":"null"})");
  const OutputFormat schema = form_of(R"("response_format":{"type":"json_schema","json_schema":)"
                                      R"({"name":"n","strict":true,"schema":{"type":"null"}}})");
  EXPECT_EQ(schema.source.kind, Kind::kJsonSchema);
  EXPECT_EQ(schema.source.text, R"({"type":"null"})");
  EXPECT_EQ(schema.param, "response_format");
  EXPECT_EQ(form_of(R"("grammar":"root ::= [a]")").source.kind, Kind::kGbnf);
  EXPECT_EQ(form_of(R"("guided_regex":"a+")").source.text, "a+");
  EXPECT_EQ(form_of(R"("guided_json":"{}")").source.text, "{}");
  EXPECT_THAT(form_of(R"("choice":["a","b"])").source.choices, ElementsAre("a", "b"));
  EXPECT_EQ(form_of(R"("structured_outputs":{"json_object":true})").source.kind, Kind::kJsonObject);
  EXPECT_EQ(form_of(R"("structured_outputs":{"json":{"type":"null"}})").source.text,
            R"({"type":"null"})");
}

TEST(ChatRequest, ReadsHowMuchToThink) {
  const auto read = [](const std::string& members) {
    const ChatRequest request = chat_request(members);
    return std::pair(request.conversation.enable_thinking, request.params.thought_budget);
  };
  using Read = std::pair<bool, std::optional<int>>;
  EXPECT_EQ(read(R"("n":1)"), Read(false, std::nullopt));
  EXPECT_EQ(read(R"("reasoning_effort":"low")"), Read(true, 1024));
  EXPECT_EQ(read(R"("reasoning_effort":"high")"), Read(true, 24576));
  EXPECT_EQ(read(R"("reasoning_effort":"xhigh")"), Read(true, std::nullopt));
  EXPECT_EQ(read(R"("thinking_budget":7)"), Read(true, 7));
  EXPECT_EQ(read(R"("max_thinking_tokens":0)"), Read(false, 0));
  EXPECT_EQ(read(R"("thinking_token_budget":-1)"), Read(true, std::nullopt));
  EXPECT_EQ(read(R"("reasoning_effort":"low","thinking_budget":9)"), Read(true, 9));
  EXPECT_EQ(read(R"("thinking_budget":0,"chat_template_kwargs":{"enable_thinking":true})"),
            Read(true, 0));
}

TEST(ChatRequest, ReadsTheFormOfCalls) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},)"
      R"({"type":"function","function":{"name":"g","strict":true,)"
      R"("parameters":{"type":"object","required":[]}}}])";
  const auto calls_of = [](const std::string& members) {
    return chat_params(members)
        .format.value_or(OutputFormat{})
        .source.calls.value_or(grammar::CallSource{});
  };
  const auto automatic = calls_of(tools);  // for the strict one
  ASSERT_EQ(automatic.functions.size(), 2U);
  EXPECT_EQ(automatic.functions[0].parameters, "");
  EXPECT_EQ(automatic.functions[1].parameters, R"({"type":"object","required":[]})");
  EXPECT_FALSE(automatic.must_call);
  EXPECT_TRUE(automatic.may_repeat);
  const auto required =
      calls_of(tools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_EQ(required.functions.size(), 2U);
  EXPECT_TRUE(required.must_call);
  EXPECT_FALSE(required.may_repeat);
  const auto named =
      calls_of(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
  ASSERT_EQ(named.functions.size(), 1U);
  EXPECT_EQ(named.functions[0].name, "f");
  EXPECT_FALSE(chat_params(tools + R"(,"tool_choice":"none")").format);
  const auto beside_a_form =
      chat_params(tools + R"(,"response_format":{"type":"json_object"})").format.value().source;
  EXPECT_EQ(beside_a_form.kind, grammar::Source::Kind::kJsonObject);
  EXPECT_EQ(beside_a_form.calls.value().functions.size(), 2U);
  EXPECT_FALSE(chat_params(R"("tools":[{"type":"function","function":{"name":"f"}}])").format);
}
}  // namespace
}  // namespace tandem::server
