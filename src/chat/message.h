#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tandem::chat {

struct ToolCall {
  std::string name;
  boost::json::value arguments;  ///< an object, or a string that is inserted verbatim
};

/// What a tool gave back. `response` may be any value; an object shows its members.
struct ToolResponse {
  std::string name;
  boost::json::value response;
};

/// Part of a message's content. Media parts render as their placeholder token.
struct ContentPart {
  enum class Kind { kText, kImage, kAudio, kVideo } kind = Kind::kText;
  std::string text;
};

/// One message after the wire format has been checked and normalized (normalize.h). Tool results
/// lie in the message whose calls they answer; there are no messages of role "tool".
struct Message {
  std::string role;                  ///< system, developer, user, assistant
  std::vector<ContentPart> content;  ///< empty: no content; several parts are joined with nothing
  std::optional<std::string> reasoning;
  std::vector<ToolCall> tool_calls;
  std::vector<ToolResponse> tool_responses;
};

struct Tool {
  boost::json::object
      function;  ///< name, description, parameters, response as the client sent them
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;
  bool enable_thinking = false;
  bool add_generation_prompt = true;
};

}  // namespace tandem::chat
