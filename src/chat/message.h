#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tandem::chat {

struct ToolCall {
  std::string id;
  std::string name;
  boost::json::value arguments;  ///< an object, or a string that is inserted verbatim
};

struct ToolResponse {
  std::string name;
  boost::json::value response;
};

/// Part of a message's content. Media parts render as their placeholder token.
struct ContentPart {
  enum class Kind { kText, kImage, kAudio, kVideo } kind = Kind::kText;
  std::string text;
};

/// One message after the wire format has been checked and normalized (server/openai_types).
struct Message {
  std::string role;  ///< system, developer, user, assistant, tool (others render as they are)
  std::vector<ContentPart> content;
  std::optional<std::string> reasoning;
  std::vector<ToolCall> tool_calls;
  std::vector<ToolResponse> tool_responses;
  std::string tool_call_id;  ///< role tool
  std::string name;          ///< role tool: function name, if the client gave one
};

struct Tool {
  boost::json::object function;  ///< name, description, parameters, response as the client sent them
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  bool enable_thinking = false;
  bool add_generation_prompt = true;
};

}  // namespace tandem::chat
