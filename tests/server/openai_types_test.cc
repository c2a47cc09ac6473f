#include "tandem/server/openai_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <random>

namespace tandem::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr kernels::SamplingParams kDefaults = {.temperature = 1.0F, .top_k = 64, .top_p = 0.95F};
constexpr const char* kUser = R"("messages":[{"role":"user","content":"Hi"}])";

std::string chat_body(const std::string& members) {
  return "{" + std::string(kUser) + (members.empty() ? "" : ",") + members + "}";
}
std::string completion_body(const std::string& members) {
  return R"({"prompt":"Hi")" + std::string(members.empty() ? "" : ",") + members + "}";
}

ApiError chat_error(const std::string& body) {
  const auto parsed = parse_chat_request(body, kDefaults);
  const auto* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? http_error(0, "") : *error;
}
ApiError completion_error(const std::string& body) {
  const auto parsed = parse_completion_request(body, kDefaults);
  const auto* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? http_error(0, "") : *error;
}
GenerationParams chat_params(const std::string& members) {
  auto parsed = parse_chat_request(chat_body(members), kDefaults);
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << members << ": " << (error ? error->message : "");
  return error ? GenerationParams{} : std::get<ChatRequest>(parsed).params;
}

struct BadMember {
  const char* members;
  const char* param;
  const char* message;
};

void PrintTo(const BadMember& bad, std::ostream* out) {
  *out << bad.members;
}

/// Members that both endpoints check.
constexpr BadMember kBadMembers[] = {
    {R"("model":7)", "model", "'model' must be a string"},
    {R"("temperature":"hot")", "temperature", "must be a number from 0 to 2"},
    {R"("temperature":-0.1)", "temperature", "must be a number from 0 to 2"},
    {R"("temperature":2.1)", "temperature", "must be a number from 0 to 2"},
    {R"("temperature":[1])", "temperature", "must be a number"},
    {R"("temperature":1e999)", "temperature", "must be a number from 0 to 2"},
    {R"("top_p":1.01)", "top_p", "must be a number from 0 to 1"},
    {R"("top_p":-1)", "top_p", "must be a number from 0 to 1"},
    {R"("top_p":true)", "top_p", "must be a number"},
    {R"("top_k":-2)", "top_k", "must be an integer from -1"},
    {R"("top_k":1.5)", "top_k", "must be an integer"},
    {R"("top_k":4294967296)", "top_k", "must be an integer"},
    {R"("min_p":2)", "min_p", "must be a number from 0 to 1"},
    {R"("min_p":"0.1")", "min_p", "must be a number"},
    {R"("seed":"x")", "seed",
     "must be an integer from -9223372036854775808 to 9223372036854775807"},
    {R"("seed":1.25)", "seed",
     "must be an integer from -9223372036854775808 to 9223372036854775807"},
    {R"("seed":99999999999999999999999999)", "seed",
     "must be an integer from -9223372036854775808 to 9223372036854775807"},
    {R"("max_tokens":-5)", "max_tokens", "must be an integer from"},
    {R"("max_tokens":"10")", "max_tokens", "must be an integer"},
    {R"("max_tokens":10.5)", "max_tokens", "must be an integer"},
    {R"("max_tokens":1e18)", "max_tokens", "must be an integer"},
    {R"("max_tokens":9223372036854775808)", "max_tokens", "must be an integer"},
    {R"("max_completion_tokens":-2)", "max_completion_tokens", "must be an integer from"},
    {R"("max_completion_tokens":{})", "max_completion_tokens", "must be an integer"},
    {R"("stop":1)", "stop", "must be a string or an array of at most 64 strings"},
    {R"("stop":"")", "stop", "each of 1 to 1024 bytes"},
    {R"("stop":["a",""])", "stop", "each of 1 to 1024 bytes"},
    {R"("stop":["a",2])", "stop", "must be a string or an array"},
    {R"("stop":{"a":1})", "stop", "must be a string or an array"},
    {R"("stop":12345678901234567890123)", "stop", "must be a string or an array"},
    {R"("stream":1)", "stream", "must be true or false"},
    {R"("stream":"true")", "stream", "must be true or false"},
    {R"("stream_options":{"include_usage":true})", "stream_options", "only allowed when 'stream'"},
    {R"("stream":true,"stream_options":[])", "stream_options", "must be an object"},
    {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
     "must be true or false"},
    {R"("stream":true,"stream_options":{"continuous_usage_stats":"yes"})",
     "stream_options.continuous_usage_stats", "must be true or false"},
    {R"("ignore_eos":"no")", "ignore_eos", "must be true or false"},
    {R"("draft_length":9)", "draft_length", "must be an integer from 0 to 8"},
    {R"("draft_length":-1)", "draft_length", "must be an integer from 0 to 8"},
    {R"("draft_length":"auto")", "draft_length", "must be an integer"},
    {R"("user":7)", "user", "must be a string"},
    {R"("n":0)", "n", "must be an integer from 1 to 128"},
    {R"("n":129)", "n", "must be an integer from 1 to 128"},
    {R"("n":"1")", "n", "must be an integer"},
    {R"("best_of":3)", "best_of", "not supported yet"},
    {R"("n":2,"best_of":1)", "best_of", "must be at least 'n'"},
    {R"("best_of":0)", "best_of", "must be an integer from 1"},
    {R"("prompt_logprobs":21)", "prompt_logprobs", "must be an integer from 0 to 20"},
    {R"("prompt_logprobs":-1)", "prompt_logprobs", "must be an integer from 0 to 20"},
    {R"("prompt_logprobs":0,"stream":true)", "prompt_logprobs", "not available when 'stream'"},
    {R"("logit_bias":{"50":-101})", "logit_bias", "numbers from -100 to 100"},
    {R"("logit_bias":{"x":1})", "logit_bias", "must be an object of at most 1024 token ids"},
    {R"("logit_bias":{"-1":1})", "logit_bias", "must be an object of at most 1024 token ids"},
    {R"("logit_bias":{"7":1,"07":2})", "logit_bias", "must be an object"},
    {R"("logit_bias":{"7":"1"})", "logit_bias", "must be an object"},
    {R"("logit_bias":[1])", "logit_bias", "must be an object"},
    {R"("presence_penalty":2.5)", "presence_penalty", "must be a number from -2 to 2"},
    {R"("frequency_penalty":-3)", "frequency_penalty", "must be a number from -2 to 2"},
    {R"("repetition_penalty":0)", "repetition_penalty", "must be a number from 0.01 to 10"},
    {R"("min_tokens":-1)", "min_tokens", "must be an integer from 0"},
    {R"("max_tokens":4,"min_tokens":5)", "min_tokens", "must be an integer from 0 to 4"},
    {R"("stop_token_ids":[-1])", "stop_token_ids", "must be an array of at most 64 token ids"},
    {R"("stop_token_ids":1)", "stop_token_ids", "must be an array"},
    {R"("skip_special_tokens":false)", "skip_special_tokens", "not supported yet"},
    {R"("n_predict":-2)", "n_predict", "must be an integer from"},
    {R"("structured_outputs":{"structural_tag":"{}"})", "structured_outputs.structural_tag",
     "not supported yet"},
    {R"("response_format":{"type":"json_object","schema":7})", "response_format.schema",
     "must be a JSON schema"},
    {R"("guided_json":7)", "guided_json", "must be a JSON schema"},
    {R"("grammar":7)", "grammar", "must be a string"},
    {R"("regex":["a"])", "regex", "must be a string"},
    {R"("choice":"a")", "choice", "must be an array of strings"},
    {R"("choice":[])", "choice", "must be an array of strings"},
    {R"("guided_choice":["a",""])", "guided_choice", "must be an array of strings"},
    {R"("regex":"a","grammar":"root ::= [a]")", "regex", "asks for a second form"},
    {R"("structured_outputs":{"regex":7})", "structured_outputs.regex", "must be a string"},
    {R"("structured_outputs":{"regex":"a","json":{}})", "structured_outputs.regex",
     "asks for a second form"},
    {R"("response_format":{"type":"xml"})", "response_format.type", "must be text, json_object"},
    {R"("response_format":{"type":"json_schema","json_schema":{}})",
     "response_format.json_schema.schema", "must be a JSON schema"},
    {R"("response_format":{"type":"json_schema"})", "response_format.json_schema",
     "must be an object"},
    {R"("response_format":"text")", "response_format", "must be an object"},
};

TEST(StopStrings, AreBoundedInNumber) {
  std::string list = R"("stop":[")";
  for (int i = 0; i < 64; ++i) list += std::to_string(i) + "\",\"";
  const ApiError error = chat_error(chat_body((list + "x\"]").c_str()));
  EXPECT_EQ(error.param, "stop");
  EXPECT_THAT(error.message, HasSubstr("at most 64 strings"));
}

class BadMembers : public ::testing::TestWithParam<BadMember> {};

TEST_P(BadMembers, AreRefusedByName) {
  const BadMember& bad = GetParam();
  for (const ApiError& error :
       {chat_error(chat_body(bad.members)), completion_error(completion_body(bad.members))}) {
    EXPECT_EQ(error.http_status, 400) << bad.members;
    EXPECT_EQ(error.param, bad.param) << bad.members;
    EXPECT_THAT(error.message, HasSubstr(bad.message)) << bad.members;
    EXPECT_THAT(error.message, HasSubstr("'" + std::string(bad.param) + "'"));
    EXPECT_EQ(error.type, "invalid_request_error");
  }
}
INSTANTIATE_TEST_SUITE_P(Table, BadMembers, ::testing::ValuesIn(kBadMembers));

/// Members of the chat endpoint alone.
constexpr BadMember kBadChatMembers[] = {
    {R"("tools":{})", "tools", "must be an array"},
    {R"("tools":[{"type":"web_search"}])", "tools[0].type", "only function is supported"},
    {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name", "missing"},
    {R"("tool_choice":"required")", "tool_choice", "not among 'tools'"},
    {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice",
     "not among 'tools'"},
    {R"("tool_choice":{"type":"function","function":{"name":"g"}},
        "tools":[{"type":"function","function":{"name":"f"}}])",
     "tool_choice", "not among 'tools'"},
    {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice", "must be"},
    {R"("tool_choice":"some")", "tool_choice", "must be \"none\""},
    {R"("parallel_tool_calls":1)", "parallel_tool_calls", "must be true or false"},
    {R"("functions":[{"name":"f"}])", "functions", "not supported yet"},
    {R"("logprobs":1)", "logprobs", "must be true or false"},
    {R"("max_tokens":0)", "max_tokens", "must be an integer from 1"},
    {R"("top_logprobs":3)", "top_logprobs", "only allowed when 'logprobs' is true"},
    {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "must be an integer from 0 to 20"},
    {R"("modalities":["text","audio"])", "modalities", "not supported yet"},
    {R"("audio":{"voice":"alloy"})", "audio", "not supported yet"},
    {R"("prediction":{"type":"content","content":"x"})", "prediction", "not supported yet"},
    {R"("reasoning_effort":"huge")", "reasoning_effort", "must be none, minimal"},
    {R"("thinking_budget":-2)", "thinking_budget", "must be an integer"},
    {R"("max_thinking_tokens":"many")", "max_thinking_tokens", "must be an integer"},
    {R"("web_search_options":{})", "web_search_options", "not supported yet"},
    {R"("echo":true)", "echo", "not supported yet"},
    {R"("documents":[{"text":"x"}])", "documents", "not supported yet"},
    {R"("include_reasoning":false)", "include_reasoning", "not supported yet"},
    {R"("reasoning_format":"none")", "reasoning_format", "not supported yet"},
    {R"("add_special_tokens":true)", "add_special_tokens", "not supported yet"},
    {R"("store":true)", "store", "not supported yet"},
    {R"("chat_template_kwargs":{"enable_thinking":1})", "chat_template_kwargs.enable_thinking",
     "must be true or false"},
    {R"("chat_template_kwargs":true)", "chat_template_kwargs", "must be an object"},
    {R"("add_generation_prompt":"no")", "add_generation_prompt", "must be true or false"},
};

class BadChatMembers : public ::testing::TestWithParam<BadMember> {};

TEST_P(BadChatMembers, AreRefusedByName) {
  const BadMember& bad = GetParam();
  const ApiError error = chat_error(chat_body(bad.members));
  EXPECT_EQ(error.http_status, 400) << bad.members;
  EXPECT_EQ(error.param, bad.param) << bad.members;
  EXPECT_THAT(error.message, HasSubstr(bad.message)) << bad.members;
}
INSTANTIATE_TEST_SUITE_P(Table, BadChatMembers, ::testing::ValuesIn(kBadChatMembers));

/// Whole chat bodies.
constexpr BadMember kBadChatBodies[] = {
    {"", "", "not valid JSON"},
    {"{", "", "not valid JSON"},
    {"not json", "", "not valid JSON"},
    {"{'messages':[]}", "", "not valid JSON"},
    {R"({"messages":[]} trailing)", "", "not valid JSON"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", "", "not valid JSON"},
    {R"({"messages":[{"role":"user","content":"\ud800"}]})", "", "not valid JSON"},
    {"null", "", "must be a JSON object"},
    {"[]", "", "must be a JSON object"},
    {"\"text\"", "", "must be a JSON object"},
    {"{}", "messages", "must be an array of at least one message"},
    {R"({"messages":null})", "messages", "must be an array"},
    {R"({"messages":"Hi"})", "messages", "must be an array"},
    {R"({"messages":{}})", "messages", "must be an array"},
    {R"({"messages":[]})", "messages", "at least one message"},
    {R"({"messages":["Hi"]})", "messages[0]", "messages[0]"},
    {R"({"messages":[{"content":"Hi"}]})", "messages[0].role", "messages[0].role"},
    {R"({"messages":[{"role":7,"content":"Hi"}]})", "messages[0].role", "messages[0].role"},
    {R"({"messages":[{"role":"king","content":"Hi"}]})", "messages[0].role", "king"},
    {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "content"},
    {R"({"messages":[{"role":"user","content":{}}]})", "messages[0].content", "content"},
    {R"({"messages":[{"role":"user","content":["Hi"]}]})", "messages[0].content[0]", "content[0]"},
    {R"({"messages":[{"role":"user","content":[{"text":"Hi"}]}]})", "messages[0].content[0].type",
     "type"},
    {R"({"messages":[{"role":"user","content":[{"type":"foo","text":"Hi"}]}]})",
     "messages[0].content[0].type", "foo"},
    {R"({"messages":[{"role":"user","content":[{"type":"text","text":7}]}]})",
     "messages[0].content[0].text", "text"},
    {R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},
        {"type":"image_url","image_url":{"url":"data:"}}]}]})",
     "messages[0].content[1].image_url", "not supported yet"},
    {R"({"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]})",
     "messages[0].content[0].input_audio", "not supported yet"},
    {R"({"messages":[{"role":"user","content":[{"type":"image","image":"x"}]}]})",
     "messages[0].content[0].image", "not supported yet"},
    {R"({"messages":[{"role":"user","content":[{"type":"audio","audio":"x"}]}]})",
     "messages[0].content[0].audio", "not supported yet"},
    {R"({"messages":[{"role":"user","content":[{"type":"video","video":"x"}]}]})",
     "messages[0].content[0].video", "not supported yet"},
};

class BadChatBodies : public ::testing::TestWithParam<BadMember> {};

TEST_P(BadChatBodies, AreRefusedByName) {
  const BadMember& bad = GetParam();
  const ApiError error = chat_error(bad.members);
  EXPECT_EQ(error.http_status, 400) << bad.members;
  EXPECT_EQ(error.param, bad.param) << bad.members << " -> " << error.message;
  EXPECT_THAT(error.message, HasSubstr(bad.message)) << bad.members;
}
INSTANTIATE_TEST_SUITE_P(Table, BadChatBodies, ::testing::ValuesIn(kBadChatBodies));

/// Whole completion bodies.
constexpr BadMember kBadCompletionBodies[] = {
    {"{}", "prompt", "must be a string, an array of token ids, or an array of either"},
    {R"({"prompt":null})", "prompt", "must be a string"},
    {R"({"prompt":7})", "prompt", "must be a string"},
    {R"({"prompt":[]})", "prompt", "must hold 1 to 128 prompts"},
    {R"({"prompt":["a",7]})", "prompt", "must be a string"},
    {R"({"prompt":[1,"a"]})", "prompt", "must be a string"},
    {R"({"prompt":[1,-1]})", "prompt", "must be a string"},
    {R"({"prompt":[1.5]})", "prompt", "must be a string"},
    {R"({"prompt":[4294967296]})", "prompt", "must be a string"},
    {R"({"prompt":["a","b"],"n":65})", "n", "at most 128"},
    {R"({"prompt":[[]]})", "prompt", "must be a string"},
    {R"({"prompt":[{}]})", "prompt", "must be a string"},
    {R"({"prompt":"a","echo":1})", "echo", "must be true or false"},
    {R"({"prompt":"a","suffix":"b"})", "suffix", "not supported yet"},
    {R"({"prompt":"a","prompt_embeds":"b"})", "prompt_embeds", "not supported yet"},
    {R"({"prompt":"a","add_special_tokens":false})", "add_special_tokens", "not supported yet"},
    {R"({"prompt":"a","logprobs":true})", "logprobs", "must be an integer from 0 to 20"},
};

class BadCompletionBodies : public ::testing::TestWithParam<BadMember> {};

TEST_P(BadCompletionBodies, AreRefusedByName) {
  const BadMember& bad = GetParam();
  const ApiError error = completion_error(bad.members);
  EXPECT_EQ(error.http_status, 400) << bad.members;
  EXPECT_EQ(error.param, bad.param) << bad.members;
  EXPECT_THAT(error.message, HasSubstr(bad.message)) << bad.members;
}
INSTANTIATE_TEST_SUITE_P(Table, BadCompletionBodies, ::testing::ValuesIn(kBadCompletionBodies));

TEST(ChatRequest, FillsInDefaults) {
  const GenerationParams params = chat_params("");
  EXPECT_EQ(params.model, "");
  EXPECT_EQ(params.sampling.temperature, 1.0F);
  EXPECT_EQ(params.sampling.top_k, 64);
  EXPECT_EQ(params.sampling.top_p, 0.95F);
  EXPECT_EQ(params.sampling.min_p, 0.0F);
  EXPECT_FALSE(params.seed);
  EXPECT_EQ(params.max_tokens, std::nullopt);
  EXPECT_TRUE(params.stop.empty());
  EXPECT_FALSE(params.stream || params.include_usage || params.ignore_eos || params.draft_length);
}

TEST(ChatRequest, ReadsEveryMember) {
  const GenerationParams params = chat_params(
      R"("model":"m","temperature":0,"top_k":-1,"top_p":0.5,"min_p":0.25,"seed":-3,)"
      R"("max_tokens":7,"max_completion_tokens":9,"stop":["a","bc"],"ignore_eos":true,)"
      R"("draft_length":3,"stream":true,"user":"u","n":3,"min_tokens":2,"stop_token_ids":[5],)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},)"
      R"("presence_penalty":0.5,"frequency_penalty":-1,"repetition_penalty":1.5,)"
      R"("logit_bias":{"9":-100,"3":1.5},"logprobs":true,"top_logprobs":4,)"
      R"("metadata":{"k":"v"},"never_heard_of":[1])");
  EXPECT_EQ(params.model, "m");
  EXPECT_EQ(params.sampling.temperature, 0.0F);
  EXPECT_EQ(params.sampling.top_k, 0);
  EXPECT_EQ(params.sampling.top_p, 0.5F);
  EXPECT_EQ(params.sampling.min_p, 0.25F);
  EXPECT_EQ(params.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(params.max_tokens, 9);
  EXPECT_THAT(params.stop, ElementsAre("a", "bc"));
  EXPECT_TRUE(params.ignore_eos && params.stream && params.include_usage);
  EXPECT_EQ(params.draft_length, 3);
  EXPECT_EQ(params.n, 3);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_THAT(params.stop_tokens, ElementsAre(5));
  EXPECT_TRUE(params.continuous_usage);
  EXPECT_EQ(params.penalties.presence, 0.5F);
  EXPECT_EQ(params.penalties.frequency, -1.0F);
  EXPECT_EQ(params.penalties.repetition, 1.5F);
  ASSERT_EQ(params.logit_bias.size(), 2U);
  EXPECT_EQ(params.logit_bias[0].token, 3);
  EXPECT_EQ(params.logit_bias[0].bias, 1.5F);
  EXPECT_EQ(params.logit_bias[1].bias, -100.0F);
  EXPECT_EQ(params.logprobs, 4);
  EXPECT_EQ(chat_params(R"("logprobs":true)").logprobs, 0);
  EXPECT_EQ(chat_params(R"("prompt_logprobs":2)").prompt_logprobs, 2);
  EXPECT_EQ(chat_params(R"("n":2,"best_of":2)").n, 2);
  EXPECT_EQ(chat_params(R"("max_tokens":8.0)").max_tokens, 8);
  EXPECT_THAT(chat_params(R"("stop":"x")").stop, ElementsAre("x"));
  EXPECT_GT(chat_params(R"("top_p":0)").sampling.top_p, 0.0F);
}

TEST(ChatRequest, AcceptsMembersThatAskForNothing) {
  chat_params(
      R"("n":1,"logit_bias":{},"presence_penalty":0,"frequency_penalty":0.0,"tools":[],)"
      R"("tool_choice":"none","response_format":{"type":"text"},"logprobs":false,)"
      R"("top_logprobs":0,"modalities":["text"],"store":false,"parallel_tool_calls":true,)"
      R"("repetition_penalty":1.0,"best_of":1,"reasoning_effort":"none","service_tier":"auto",)"
      R"("chat_template_kwargs":{"enable_thinking":false})");
  chat_params(
      R"("model":null,"temperature":null,"stop":null,"stream":null,"stream_options":null,)"
      R"("tools":null,"n":null,"audio":null,"max_tokens":null,"seed":null,"draft_length":null,)"
      R"("response_format":null,"logit_bias":null,"prediction":null)");
}

TEST(ChatRequest, ReadsConversations) {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"system","content":"Be brief."},)"
      R"({"role":"user","content":[{"type":"text","text":"A"},{"type":"text","text":"B"}]},)"
      R"({"role":"assistant","content":"C"},{"role":"user","content":"D"}]})",
      kDefaults);
  ASSERT_TRUE(std::holds_alternative<ChatRequest>(parsed));
  const chat::Conversation& conversation = std::get<ChatRequest>(parsed).conversation;
  ASSERT_EQ(conversation.messages.size(), 4U);
  EXPECT_EQ(conversation.messages[0].role, "system");
  EXPECT_EQ(conversation.messages[1].content.size(), 2U);
  EXPECT_TRUE(conversation.add_generation_prompt);
  EXPECT_FALSE(conversation.enable_thinking);
}

TEST(ChatRequest, ReadsToolsAndThinking) {
  const auto conversation_of = [](const std::string& members) {
    auto parsed = parse_chat_request(chat_body(members), kDefaults);
    EXPECT_TRUE(std::holds_alternative<ChatRequest>(parsed)) << members;
    return std::get<ChatRequest>(std::move(parsed)).conversation;
  };
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(conversation_of(tools).tools.size(), 1U);
  EXPECT_EQ(conversation_of(tools + R"(,"tool_choice":"auto")").tools.size(), 1U);
  EXPECT_EQ(conversation_of(tools + R"(,"tool_choice":"none")").tools.size(), 0U);
  EXPECT_TRUE(conversation_of(R"("reasoning_effort":"low")").enable_thinking);
  EXPECT_FALSE(conversation_of(R"("reasoning_effort":"minimal")").enable_thinking);
  EXPECT_TRUE(
      conversation_of(R"("chat_template_kwargs":{"enable_thinking":true})").enable_thinking);
  EXPECT_FALSE(conversation_of(R"("reasoning_effort":"high",)"
                               R"("chat_template_kwargs":{"enable_thinking":false})")
                   .enable_thinking);
}

TEST(CompletionRequest, ReadsEveryFormOfPrompt) {
  const auto prompts_of = [](const char* body) {
    auto parsed = parse_completion_request(body, kDefaults);
    return std::get<CompletionRequest>(std::move(parsed)).prompts;
  };
  const auto prompt_of = [&](const char* body) {
    auto prompts = prompts_of(body);
    EXPECT_EQ(prompts.size(), 1U);
    return std::move(prompts.at(0));
  };
  const auto texts = prompts_of(R"({"prompt":["a","b"]})");
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(std::get<std::string>(texts[1]), "b");
  const auto ids = prompts_of(R"({"prompt":[[1,2],[3],"c"]})");
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_THAT(std::get<1>(ids[0]), ElementsAre(1, 2));
  EXPECT_EQ(std::get<std::string>(ids[2]), "c");
  EXPECT_EQ(std::get<std::string>(prompt_of(R"({"prompt":"Hi"})")), "Hi");
  EXPECT_EQ(std::get<std::string>(prompt_of(R"({"prompt":""})")), "");
  EXPECT_EQ(std::get<std::string>(prompt_of(R"({"prompt":["Hi"]})")), "Hi");
  EXPECT_THAT(std::get<1>(prompt_of(R"({"prompt":[2,5,7]})")), ElementsAre(2, 5, 7));
  EXPECT_THAT(std::get<1>(prompt_of(R"({"prompt":[2]})")), ElementsAre(2));
  EXPECT_THAT(std::get<1>(prompt_of(R"({"prompt":[[2,5]]})")), ElementsAre(2, 5));
}

TEST(RequestBodies, AnyDamageIsAnsweredInOneWellFormedError) {
  const std::string bodies[] = {
      chat_body(R"("temperature":0.5,"stop":["a","b"],"stream":true,"seed":12345678901,)"
                R"("stream_options":{"include_usage":true},"logit_bias":{},"max_tokens":7)"),
      R"({"prompt":[1,2,3],"top_k":5,"min_p":0.1,"stop":"\u00e9\ud83d\ude00","draft_length":2})",
      R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":)"
      R"({"name":"f","arguments":"{\"a\":[1,{}]}"}}]},{"role":"tool","tool_call_id":"1",)"
      R"("content":[{"type":"text","text":"x"}]}]})"};
  std::mt19937 random(11);
  for (int round = 0; round < 30'000; ++round) {
    std::string body = bodies[random() % 3];
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      const std::size_t at = random() % body.size();
      switch (random() % 4) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body.erase(at, 1 + random() % 8);
          break;
        case 2:
          body.insert(at, 1, "{}[]\",:0e-\\tn"[random() % 13]);
          break;
        default:
          body.resize(at);
          break;
      }
      if (body.empty()) break;
    }
    for (const ApiError& error : {chat_error(body), completion_error(body)}) {
      if (error.http_status == 0) continue;
      ASSERT_EQ(error.http_status, 400) << body;
      boost::system::error_code failure;
      boost::json::parse(to_json(error), failure);
      ASSERT_FALSE(failure) << to_json(error);
    }
  }
}

TEST(ApiErrorJson, HasOpenAisForm) {
  EXPECT_EQ(to_json(invalid_request("Say \"what\".", "messages[0]", "bad")),
            R"({"error":{"message":"Say \"what\".","type":"invalid_request_error",)"
            R"("param":"messages[0]","code":"bad"}})");
  EXPECT_EQ(to_json(http_error(500, "Oh.")),
            R"({"error":{"message":"Oh.","type":"server_error","param":null,"code":null}})");
  // Bytes of a request in a message stay valid JSON.
  EXPECT_THAT(to_json(unknown_path("GET", "/\xff\"\n", "/v1/models")), HasSubstr(R"('/?\"?')"));
}

}  // namespace
}  // namespace tandem::server
