// Members that vLLM's and llama.cpp's own clients send.

#include <gtest/gtest.h>

#include <string>

#include "tandem/server/openai_types.h"

namespace tandem::server {
namespace {

constexpr kernels::SamplingParams kDefaults;

std::variant<ChatRequest, ApiError> parsed_chat(const std::string& members) {
  return parse_chat_request(R"({"messages":[{"role":"user","content":"Hi"}],)" + members + "}",
                            kDefaults);
}
ApiError chat_error(const std::string& members) {
  const auto parsed = parsed_chat(members);
  const auto* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? http_error(0, "") : *error;
}
ApiError completion_error(const std::string& members) {
  const auto parsed = parse_completion_request(R"({"prompt":"Hi",)" + members + "}", kDefaults);
  const auto* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? http_error(0, "") : *error;
}

TEST(MembersOfOtherServers, AreRefusedWhereTheyWouldChangeTheAnswer) {
  const std::pair<std::string, std::string> members[] = {
      {"allowed_token_ids", "[5]"},
      {"bad_words", R"(["x"])"},
      {"cache_salt", R"("tenant")"},
      {"guided_whitespace_pattern", R"("\\n")"},
      {"include_stop_str_in_output", "true"},
      {"priority", "-1"},
      {"repetition_detection", R"({"max_pattern_size":8})"},
      {"return_token_ids", "true"},
      {"return_tokens_as_token_ids", "true"},
      {"use_beam_search", "true"},
      {"truncate_prompt_tokens", "9"},
      {"dry_multiplier", "0.8"},
      {"dynatemp_range", "0.5"},
      {"lora", R"([{"id":0}])"},
      {"mirostat", "2"},
      {"n_probs", "5"},
      {"return_tokens", "true"},
      {"top_n_sigma", "1"},
      {"typical_p", "0.9"},
      {"xtc_probability", R"("0.5")"}};
  for (const auto& [name, value] : members) {
    const std::string member = "\"" + name + "\":" + value;
    for (const ApiError& error : {chat_error(member), completion_error(member)}) {
      EXPECT_EQ(error.param, name);
      EXPECT_EQ(error.code, "unsupported_parameter") << name;
    }
  }
}

TEST(MembersOfOtherServers, AreTakenWhereTheyAskForNothing) {
  const ApiError error = chat_error(
      R"("typical_p":1.0,"mirostat":0,"dynatemp_range":0,"xtc_probability":0,"dry_multiplier":0,)"
      R"("top_n_sigma":-1,"lora":[],"n_probs":0,"return_tokens":false,"bad_words":[],"echo":false,)"
      R"("use_beam_search":false,"include_stop_str_in_output":false,"priority":0,"documents":[],)"
      R"("add_special_tokens":false,"include_reasoning":true,"reasoning_format":"auto",)"
      R"("n_predict":-1,"logit_bias":[],)"
      R"("return_token_ids":null,"cache_prompt":true,"structured_outputs":null)");
  EXPECT_EQ(error.http_status, 0) << error.message;
}

TEST(MembersOfOtherServers, BoundTheAnswer) {
  const auto parsed = parsed_chat(R"("n_predict":8)");
  ASSERT_TRUE(std::holds_alternative<ChatRequest>(parsed));
  EXPECT_EQ(std::get<ChatRequest>(parsed).params.max_tokens, 8);
}

TEST(MembersOfOtherServers, BoundNothingWhereTheyAreMinusOne) {
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    const auto parsed = parsed_chat('"' + std::string(name) + R"(":-1)");
    ASSERT_TRUE(std::holds_alternative<ChatRequest>(parsed)) << name;
    EXPECT_EQ(std::get<ChatRequest>(parsed).params.max_tokens, std::nullopt) << name;
  }
  for (const char* members : {R"("n_predict":-2)", R"("n_predict":0)", R"("max_tokens":-2)"}) {
    EXPECT_EQ(chat_error(members).http_status, 400) << members;
  }
  EXPECT_EQ(chat_error(R"("logit_bias":[5])").param, "logit_bias");
}

}  // namespace
}  // namespace tandem::server
