// POST /v1/responses: what is read, and what is written.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "server_fixture.h"
#include "tandem/server/responses_request.h"

namespace tandem::server::testing {
namespace {

namespace json = boost::json;
using engine::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kOutput =
    "<|channel>thought\nHm.\n<channel|>Well<|tool_call>call:f{a:1}<tool_call|><turn|>";

ResponsesRequest parsed(const std::string& body) {
  auto request = parse_responses_request(body, {});
  const auto* error = std::get_if<ApiError>(&request);
  EXPECT_EQ(error, nullptr) << (error ? error->message : "");
  return error ? ResponsesRequest{} : std::get<ResponsesRequest>(std::move(request));
}
ApiError error_of(const std::string& body) {
  const auto request = parse_responses_request(body, {});
  const auto* error = std::get_if<ApiError>(&request);
  return error == nullptr ? http_error(0, "") : *error;
}

class ResponsesTest : public ServerTest {
 protected:
  net::ClientResponse respond(std::string body) {
    return call("POST", "/v1/responses", std::move(body));
  }
};

TEST(ResponsesRequests, ReadItems) {
  const auto conversation = parsed(R"({"instructions":"Be brief.","input":[
          {"role":"user","content":"A"},
          {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"T"}]},
          {"type":"message","role":"assistant","content":[{"type":"output_text","text":"B"}]},
          {"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\":1}"},
          {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
          {"type":"function_call_output","call_id":"2","output":"two"},
          {"type":"function_call_output","call_id":"1","output":
            [{"type":"input_text","text":"one"}]}],
          "tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],
          "reasoning":{"effort":"low"}})")
                                .chat.conversation;
  ASSERT_EQ(conversation.messages.size(), 3U);
  EXPECT_EQ(conversation.messages[0].role, "system");
  const chat::Message& reply = conversation.messages[2];
  EXPECT_EQ(reply.content.at(0).text, "B");
  EXPECT_EQ(reply.reasoning, "T");
  ASSERT_EQ(reply.tool_calls.size(), 2U);
  ASSERT_EQ(reply.tool_responses.size(), 2U);
  EXPECT_EQ(reply.tool_responses[0].name, "g");
  EXPECT_EQ(reply.tool_responses[1].name, "f");
  ASSERT_EQ(conversation.tools.size(), 1U);
  EXPECT_EQ(conversation.tools[0].function.at("name"), "f");
  EXPECT_TRUE(conversation.enable_thinking);
}

TEST(ResponsesRequests, AreRefusedByName) {
  const std::pair<const char*, const char*> bad[] = {
      {R"({})", "input"},
      {R"({"input":7})", "input"},
      {R"({"input":"x","top_logprobs":2})", "top_logprobs"},
      {R"({"input":"x","text":{"verbosity":"low"}})", "text.verbosity"},
      {R"({"input":[]})", "input"},
      {R"({"input":[7]})", "input[0]"},
      {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0].type"},
      {R"({"input":[{"role":"user"}]})", "input[0].content"},
      {R"({"input":[{"content":"x"}]})", "input[0].role"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})",
       "input[0].content[0].input_image"},
      {R"({"input":[{"type":"function_call","call_id":"1","name":"f"}]})", "input[0].arguments"},
      {R"({"input":[{"type":"function_call_output","output":"f"}]})", "input[0].call_id"},
      {R"({"input":"a","tools":[{"type":"web_search"}]})", "tools[0].type"},
      {R"({"input":"a","previous_response_id":"r"})", "previous_response_id"},
      {R"({"input":"a","store":true})", "store"},
      {R"({"input":"a","background":true})", "background"},
      {R"({"input":"a","truncation":"auto"})", "truncation"},
      {R"({"input":"a","max_output_tokens":0})", "max_output_tokens"},
      {R"({"input":"a","reasoning":{"effort":"huge"}})", "reasoning.effort"},
      {R"({"input":"a","text":{"format":{"type":"xml"}}})", "text.format.type"},
      {R"({"input":"a","text":{"format":{"type":"json_schema"}}})", "text.format.schema"},
      {R"({"input":"a","tool_choice":{"type":"function","name":"f"}})", "tool_choice"},
  };
  for (const auto& [body, param] : bad) {
    const ApiError error = error_of(body);
    EXPECT_EQ(error.http_status, 400) << body;
    EXPECT_EQ(error.param, param) << body << error.message;
  }
}

TEST(ResponsesRequests, RepeatTheirMembersExactly) {
  const std::string members = parsed(R"({"input":"a","instructions":"\"\u00e9","metadata":{"k":"v"},
      "max_output_tokens":4.0,"tools":[{"type":"function","name":"f","parameters":{"maximum":12345678901234567890123}}]})")
                                  .members;
  const auto value = json::parse("{" + members + "}");
  EXPECT_EQ(value.at("instructions"), "\"\xC3\xA9");
  EXPECT_EQ(value.at("metadata").at("k"), "v");
  EXPECT_THAT(members, HasSubstr(R"({"maximum":12345678901234567890123})"));
  EXPECT_THAT(members, HasSubstr(R"("max_output_tokens":4,)"));  // an integer, however it came
}

TEST_F(ResponsesTest, AnswersWithItems) {
  start_and_attach();
  Pending pending([this] { return respond(R"({"input":"Hi","max_output_tokens":50})"); });
  EXPECT_EQ(engine_.request(0).max_tokens, 50);
  EXPECT_EQ(engine_.request(0).prompt,
            test_tokenizer()->encode("<bos><|turn>user\nHi<turn|>\n<|turn>model\n", true));
  engine_.emit_tokens(0, tokens_of(kOutput));
  engine_.emit_end(0, FinishReason::kStop, {.prompt_tokens = 7, .completion_tokens = 9});
  const auto body = json::parse(pending.get().body);
  EXPECT_EQ(body.at("object"), "response");
  EXPECT_EQ(body.at("status"), "completed");
  const auto& output = body.at("output").as_array();
  ASSERT_EQ(output.size(), 3U);
  EXPECT_EQ(output[0].at("type"), "reasoning");
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "Hm.");
  EXPECT_EQ(output[1].at("content").at(0).at("text"), "Well");
  EXPECT_EQ(output[2].at("type"), "function_call");
  EXPECT_EQ(output[2].at("name"), "f");
  EXPECT_EQ(output[2].at("arguments"), R"({"a":1})");
  EXPECT_EQ(body.at("usage").at("total_tokens"), 16);
}

TEST_F(ResponsesTest, SayWhichItemWasCut) {
  start_and_attach();
  Pending pending(
      [this] { return respond(R"({"input":"Hi","include":["reasoning.encrypted_content"]})"); });
  engine_.emit_tokens(0, tokens_of("<|channel>thought\nHm.<channel|>Wel"));
  engine_.emit_end(0, FinishReason::kLength);
  const auto body = json::parse(pending.get().body);
  EXPECT_EQ(body.at("output").at(0).at("status"), "completed");
  EXPECT_EQ(body.at("output").at(1).at("status"), "incomplete");
}

TEST_F(ResponsesTest, StreamsEventsInOpenAisOrder) {
  start_and_attach();
  Pending pending([this] { return respond(R"({"input":"Hi","stream":true})"); });
  engine_.emit_tokens(0, tokens_of(kOutput));
  engine_.emit_end(0, FinishReason::kLength);
  std::vector<std::string> types;
  std::vector<json::value> events;
  net::SseReader reader;
  reader.feed(pending.get().body, [&](std::string_view event) {
    events.push_back(json::parse(std::string(event)));
    types.emplace_back(events.back().at("type").as_string());
  });
  EXPECT_THAT(
      types,
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.reasoning_text.delta",
                  "response.reasoning_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta",
                  "response.output_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.incomplete"));
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].at("sequence_number"), static_cast<std::int64_t>(i));
  }
  EXPECT_THAT(pending.get().body, HasSubstr("event: response.output_text.delta\ndata: {"));
  const auto& response = events.back().at("response");
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(response.at("output").at(0), events[7].at("item"));
  EXPECT_EQ(response.at("output").at(2), events[17].at("item"));
}

TEST_F(ResponsesTest, ReportsAFailureWithinAStream) {
  start_and_attach();
  Pending pending([this] { return respond(R"({"input":"Hi","stream":true})"); });
  engine_.emit_text(0, "a");
  engine::Event failure;
  failure.finish = FinishReason::kError;
  failure.error = core::internal_error("the device failed");
  engine_.emit(0, failure);
  EXPECT_THAT(pending.get().body, HasSubstr("event: error\ndata: {\"type\":\"error\""));
}

}  // namespace
}  // namespace tandem::server::testing
