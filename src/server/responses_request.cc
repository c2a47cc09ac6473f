#include "tandem/server/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <limits>
#include <utility>

#include "tandem/server/body_reader.h"
#include "tandem/server/json_text.h"
#include "tandem/server/thinking.h"
#include "tandem/server/unsupported.h"

namespace tandem::server {
namespace {

namespace json = boost::json;

bool is_disabled(const json::value& value) {
  return text_of(value) == "disabled";
}

/// Whether all that is to be included is of items that never come here, or, as thoughts do, comes
/// in plain anyway.
bool adds_nothing(const json::value& value) {
  const json::array* names = value.if_array();
  return names != nullptr && std::all_of(names->begin(), names->end(), [](const auto& name) {
           const auto text = text_of(name);
           return text && *text != "message.output_text.logprobs";
         });
}

constexpr Unsupported kUnsupportedInResponses[] = {
    {"background", is_false},
    {"conversation", never},
    {"include", adds_nothing},
    {"max_tool_calls", never},
    {"n", is_one},
    {"previous_response_id", never},
    {"prompt", never},
    {"store", is_false},
    {"truncation", is_disabled},
    {"prompt_logprobs", never},
    {"top_logprobs", is_zero},
};

/// Turns the items of `input` into messages of a chat.
class InputReader {
 public:
  explicit InputReader(BodyReader& reader) : reader_(reader) {}

  json::array read() {
    if (const auto instructions = reader_.string("instructions")) {
      messages_.push_back({{"role", "system"}, {"content", json::string(*instructions)}});
    }
    const json::value* input = reader_.find("input");
    const json::array* items = input == nullptr ? nullptr : input->if_array();
    if (input != nullptr && text_of(*input)) {
      messages_.push_back({{"role", "user"}, {"content", *input}});
    } else if (items == nullptr || items->empty()) {
      reader_.fail("input", "must be a string or an array of at least one item");
    } else {
      for (std::size_t i = 0; i < items->size(); ++i) {
        read_item((*items)[i], fmt::format("input[{}]", i));
      }
    }
    return std::move(messages_);
  }

 private:
  void fail(const std::string& path, std::string_view rule) {
    reader_.fail(invalid_request(fmt::format("'{}' {}.", path, rule), path));
  }

  void read_item(const json::value& value, const std::string& path) {
    const json::object* object = value.if_object();
    if (object == nullptr) return fail(path, "must be an object");
    BodyReader item(*object, path);
    const std::string_view type = item.string("type").value_or("message");
    if (type == "message") {
      read_message(item);
    } else if (type == "function_call") {
      read_call(item);
    } else if (type == "function_call_output") {
      read_output(item);
    } else if (type == "reasoning") {
      read_reasoning(*object);
    } else {
      item.fail("type", "must be message, function_call, function_call_output or reasoning");
    }
    if (item.error()) reader_.fail(*item.error());
  }

  void read_message(BodyReader& item) {
    const auto role = item.string("role");
    if (!role) return item.fail("role", "must be user, assistant, system or developer");
    json::object message = {{"role", json::string(*role)},
                            {"content", read_content(item, "content")}};
    if (*role == "assistant") take_reasoning(message);
    messages_.push_back(std::move(message));
  }

  /// A string, or parts as chats know them.
  json::value read_content(BodyReader& item, std::string_view name) {
    const json::value* content = item.find(name);
    const json::array* list = content == nullptr ? nullptr : content->if_array();
    if (content != nullptr && text_of(*content)) return *content;
    if (list == nullptr) {
      item.fail(name, "must be a string or an array of parts");
      return {};
    }
    json::array parts;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string path = fmt::format("{}[{}]", item.path_of(name), i);
      const json::object* object = (*list)[i].if_object();
      if (object == nullptr) {
        fail(path, "must be an object");
        return {};
      }
      BodyReader part(*object, path);
      const std::string_view type = part.string("type").value_or("");
      if (type == "input_image" || type == "input_file" || type == "input_audio") {
        part.fail(not_supported(fmt::format("{}.{}", path, type)));
      } else if (type != "input_text" && type != "output_text" && type != "text") {
        part.fail("type", "must be input_text or output_text");
      } else if (const auto text = part.string("text")) {
        parts.push_back({{"type", "text"}, {"text", json::string(*text)}});
      } else {
        part.fail("text", "must be a string");
      }
      if (part.error()) reader_.fail(*part.error());
    }
    return parts;
  }

  /// Calls follow one another in one message, which also holds the text before them.
  void read_call(BodyReader& item) {
    const auto id = item.string("call_id");
    const auto name = item.string("name");
    const auto arguments = item.string("arguments");
    if (!id || !name || !arguments) {
      return item.fail(!id ? "call_id" : !name ? "name" : "arguments", "must be a string");
    }
    const bool continues =
        !messages_.empty() && messages_.back().at("role").as_string() == "assistant";
    if (!continues) {
      json::object message = {{"role", "assistant"}, {"content", nullptr}};
      take_reasoning(message);
      messages_.push_back(std::move(message));
    }
    json::object& message = messages_.back().as_object();
    if (!message.contains("tool_calls")) message["tool_calls"] = json::array();
    message["tool_calls"].as_array().push_back(
        {{"id", json::string(*id)},
         {"type", "function"},
         {"function", {{"name", json::string(*name)}, {"arguments", json::string(*arguments)}}}});
  }

  void read_output(BodyReader& item) {
    const auto id = item.string("call_id");
    if (!id) return item.fail("call_id", "must be a string");
    messages_.push_back({{"role", "tool"},
                         {"tool_call_id", json::string(*id)},
                         {"content", read_content(item, "output")}});
  }

  /// Belongs to the message of the model that follows.
  void read_reasoning(const json::object& item) {
    const json::value* content = item.if_contains("content");
    const json::array* parts = content == nullptr ? nullptr : content->if_array();
    for (std::size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
      const json::object* part = (*parts)[i].if_object();
      const json::value* text = part == nullptr ? nullptr : part->if_contains("text");
      if (const auto thought = text == nullptr ? std::nullopt : text_of(*text)) {
        reasoning_ += *thought;
      }
    }
  }
  void take_reasoning(json::object& message) {
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
  }

  BodyReader& reader_;
  json::array messages_;
  std::string reasoning_;
};

/// Tools lie flat in this API, and within `function` in chats.
json::array read_tools(BodyReader& reader) {
  json::array tools;
  const json::value* value = reader.find("tools");
  if (value == nullptr) return tools;
  const json::array* list = value->if_array();
  if (list == nullptr) {
    reader.fail("tools", "must be an array");
    return tools;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const json::object* tool = (*list)[i].if_object();
    const json::value* type = tool == nullptr ? nullptr : tool->if_contains("type");
    if (type == nullptr || text_of(*type) != "function") {
      const std::string path = fmt::format("tools[{}].type", i);
      reader.fail(invalid_request(
          fmt::format("'{}' must be function: this server runs no tools of its own.", path), path));
      return tools;
    }
    json::object function = *tool;
    function.erase("type");
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

/// What a response repeats of its request.
std::string repeated_members(BodyReader& reader, const GenerationParams& params) {
  const auto sent = [&reader](std::string_view name, const char* absent) {
    const json::value* value = reader.find(name);
    return value == nullptr ? std::string(absent) : exact_json(*value);
  };
  return fmt::format(
      R"("instructions":{},"max_output_tokens":{},"metadata":{},"parallel_tool_calls":{},)"
      R"("previous_response_id":null,"reasoning":{},"store":false,"temperature":{},)"
      R"("text":{},"tool_choice":{},"tools":{},"top_p":{},"truncation":"disabled","user":{})",
      sent("instructions", "null"),
      params.max_tokens ? std::to_string(*params.max_tokens) : std::string("null"),
      sent("metadata", "{}"), sent("parallel_tool_calls", "true"),
      sent("reasoning", R"({"effort":null,"summary":null})"), params.sampling.temperature,
      sent("text", R"({"format":{"type":"text"}})"), sent("tool_choice", R"("auto")"),
      sent("tools", "[]"), params.sampling.top_p, sent("user", "null"));
}

}  // namespace

std::variant<ResponsesRequest, ApiError> parse_responses_request(
    std::string_view body, const kernels::SamplingParams& defaults) {
  const auto parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  BodyReader reader(std::get<json::object>(parsed));
  ResponsesRequest request;
  GenerationParams& params = request.chat.params;
  params = read_params(reader, defaults);
  constexpr int kMaxInt = std::numeric_limits<int>::max();
  if (const auto most = reader.integer("max_output_tokens", 1, kMaxInt)) {
    params.max_tokens = static_cast<int>(*most);
  }
  refuse_unsupported(reader, kUnsupportedInResponses);
  if (auto format = read_text_format(reader)) params.format = std::move(format);
  request.chat.parallel_tool_calls = reader.boolean("parallel_tool_calls").value_or(true);
  const Thinking thinking = read_thinking_of_response(reader);
  request.chat.conversation.enable_thinking = thinking.is_on;
  params.thought_budget = thinking.budget;
  const json::array messages = InputReader(reader).read();
  const json::array tools = read_tools(reader);
  if (!reader.error()) read_conversation(reader, messages, &tools, request.chat.conversation);
  if (!reader.error()) read_form_of_calls(reader, request.chat);
  if (reader.error()) return *reader.error();
  request.members = repeated_members(reader, params);
  return request;
}

}  // namespace tandem::server
