#include "tandem/chat/normalize.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/chat/call_syntax.h"
#include "tandem/chat/python_text.h"
#include "tandem/chat/wire_json.h"

namespace tandem::chat {

namespace {

namespace json = boost::json;

core::Status wrong(std::string_view path, std::string_view what) {
  return core::invalid_argument(fmt::format("{}: {}", path, what));
}

/// A member, or null when it is absent or null: clients write both for "none".
const json::value* member(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::string:
      return big_integer(value) ? "a number" : "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
    default:
      return "a number";
  }
}

/// The text of a JSON string; a long integer, which is stored as one, is none.
const json::string* as_text(const json::value& value) {
  return big_integer(value) ? nullptr : value.if_string();
}

core::Result<const json::object*> expect_object(const json::value* value, const std::string& path) {
  if (value == nullptr) return wrong(path, "missing; must be an object");
  if (const auto* object = value->if_object()) return object;
  return wrong(path, fmt::format("must be an object, not {}", kind_name(*value)));
}

core::Result<std::string> expect_text(const json::value* value, const std::string& path) {
  if (value == nullptr) return wrong(path, "missing; must be a string");
  if (const auto* text = as_text(*value)) return std::string(*text);
  return wrong(path, fmt::format("must be a string, not {}", kind_name(*value)));
}

/// The elements of an optional list member; none when it is absent.
core::Result<const json::array*> optional_list(const json::object& object, std::string_view name,
                                               const std::string& path) {
  static const json::array kEmpty;
  const json::value* value = member(object, name);
  if (value == nullptr) return &kEmpty;
  if (const auto* list = value->if_array()) return list;
  return wrong(fmt::format("{}.{}", path, name),
               fmt::format("must be a list, not {}", kind_name(*value)));
}

struct PartType {
  std::string_view name;
  ContentPart::Kind kind;
};
constexpr std::array<PartType, 9> kPartTypes = {{
    {"text", ContentPart::Kind::kText},
    {"image_url", ContentPart::Kind::kImage},
    {"input_image", ContentPart::Kind::kImage},
    {"image", ContentPart::Kind::kImage},
    {"input_audio", ContentPart::Kind::kAudio},
    {"audio_url", ContentPart::Kind::kAudio},
    {"audio", ContentPart::Kind::kAudio},
    {"video_url", ContentPart::Kind::kVideo},
    {"video", ContentPart::Kind::kVideo},
}};

bool is_model(std::string_view role) {
  return role == "assistant" || role == "model";
}
bool is_system(std::string_view role) {
  return role == "system" || role == "developer";
}

class MessageReader {
 public:
  explicit MessageReader(WireRules rules) : strict_(rules == WireRules::kApi) {}

  core::Status read(const json::value& value, const std::string& path) {
    TANDEM_ASSIGN(const json::object* object, expect_object(&value, path));
    TANDEM_ASSIGN(const std::string role, read_role(*object, path + ".role"));
    if (role == "tool") return read_tool_result(*object, path);

    Message message;
    message.role = role;
    TANDEM_ASSIGN(message.content,
                  read_content(object->if_contains("content"), role, path + ".content"));
    TANDEM_TRY(read_reasoning(*object, path, message));
    call_ids_.clear();
    if (strict_ && role != "assistant") {
      for (const char* name : {"tool_calls", "tool_responses"}) {
        if (member(*object, name) != nullptr) {
          return wrong(fmt::format("{}.{}", path, name), "only an assistant message can have it");
        }
      }
    }
    if (strict_ && member(*object, "function_call") != nullptr) {
      return wrong(path + ".function_call", "is the old form of a call; send tool_calls");
    }
    TANDEM_TRY(read_calls(*object, path, message));
    TANDEM_TRY(read_native_responses(*object, path, message));
    takes_results_ = !message.tool_calls.empty() && message.tool_responses.empty();
    messages_.push_back(std::move(message));
    return {};
  }

  std::vector<Message> take() { return std::move(messages_); }

 private:
  core::Result<std::string> read_role(const json::object& message, const std::string& path) {
    TANDEM_ASSIGN(std::string role, expect_text(member(message, "role"), path));
    if (!strict_ || is_system(role) || role == "user" || role == "assistant" || role == "tool") {
      return role;
    }
    return wrong(path, fmt::format("unknown role \"{}\"; use system, developer, user, assistant "
                                   "or tool",
                                   role));
  }

  core::Result<std::vector<ContentPart>> read_content(const json::value* content,
                                                      std::string_view role,
                                                      const std::string& path) {
    std::vector<ContentPart> parts;
    if (content == nullptr || content->is_null()) return parts;
    if (const auto* text = as_text(*content)) {
      if (!text->empty()) parts.push_back({ContentPart::Kind::kText, std::string(*text)});
      return parts;
    }
    const auto* list = content->if_array();
    if (list == nullptr) {
      if (strict_) {
        return wrong(
            path, fmt::format("must be a string or a list of parts, not {}", kind_name(*content)));
      }
      // The template writes nothing of it, but has seen that there is content.
      if (is_truthy(content)) parts.emplace_back();
      return parts;
    }
    for (std::size_t i = 0; i < list->size(); ++i) {
      TANDEM_ASSIGN(ContentPart part, read_part((*list)[i], role, fmt::format("{}[{}]", path, i)));
      parts.push_back(std::move(part));
    }
    return parts;
  }

  core::Result<ContentPart> read_part(const json::value& value, std::string_view role,
                                      const std::string& path) {
    if (!strict_ && !value.is_object()) return ContentPart{};
    TANDEM_ASSIGN(const json::object* part, expect_object(&value, path));
    const json::value* type_value = member(*part, "type");
    if (!strict_ && (type_value == nullptr || as_text(*type_value) == nullptr)) {
      return ContentPart{};
    }
    TANDEM_ASSIGN(const std::string type, expect_text(type_value, path + ".type"));
    for (const PartType& known : kPartTypes) {
      if (known.name != type) continue;
      if (known.kind == ContentPart::Kind::kText) return read_text_part(*part, role, path);
      if (!is_system(role) && role != "tool") return ContentPart{known.kind, {}};
      if (!strict_) return ContentPart{};
      return wrong(path + ".type", fmt::format("a {} message can only have text parts", role));
    }
    if (!strict_) return ContentPart{};
    return wrong(path + ".type", fmt::format("unknown content part type \"{}\"; use text", type));
  }

  core::Result<ContentPart> read_text_part(const json::object& part, std::string_view role,
                                           const std::string& path) {
    const bool may_be_absent = !strict_ && !is_model(role) && !is_system(role);
    if (may_be_absent && !part.contains("text")) return ContentPart{};
    TANDEM_ASSIGN(std::string text, expect_text(member(part, "text"), path + ".text"));
    return ContentPart{ContentPart::Kind::kText, std::move(text)};
  }

  core::Status read_reasoning(const json::object& object, const std::string& path,
                              Message& message) {
    for (const char* name : {"reasoning", "reasoning_content"}) {
      const json::value* value = member(object, name);
      if (value == nullptr) continue;
      TANDEM_ASSIGN(std::string text, expect_text(value, fmt::format("{}.{}", path, name)));
      if (!message.reasoning && !text.empty()) message.reasoning = std::move(text);
    }
    return {};
  }

  core::Status read_calls(const json::object& object, const std::string& path, Message& message) {
    TANDEM_ASSIGN(const json::array* calls, optional_list(object, "tool_calls", path));
    for (std::size_t i = 0; i < calls->size(); ++i) {
      const std::string call_path = fmt::format("{}.tool_calls[{}]", path, i);
      TANDEM_ASSIGN(const json::object* call, expect_object(&(*calls)[i], call_path));
      const std::string function_path = call_path + ".function";
      TANDEM_ASSIGN(const json::object* function,
                    expect_object(member(*call, "function"), function_path));
      TANDEM_ASSIGN(std::string name,
                    expect_text(member(*function, "name"), function_path + ".name"));
      TANDEM_ASSIGN(json::value arguments,
                    read_arguments(member(*function, "arguments"), function_path + ".arguments"));
      message.tool_calls.push_back({std::move(name), std::move(arguments)});
      const json::value* id = member(*call, "id");
      call_ids_.push_back(id == nullptr ? json::value() : *id);
    }
    return {};
  }

  core::Result<json::value> read_arguments(const json::value* arguments, const std::string& path) {
    if (arguments == nullptr) return json::value(json::string());
    if (arguments->is_object()) return *arguments;
    if (const auto* text = as_text(*arguments)) {
      auto parsed = parse_json(*text);
      return parsed.ok() && parsed->is_object() ? std::move(*parsed) : *arguments;
    }
    if (!strict_) return json::value(json::string());
    return wrong(path, fmt::format("must be a string with the JSON text of an object, not {}",
                                   kind_name(*arguments)));
  }

  core::Status read_native_responses(const json::object& object, const std::string& path,
                                     Message& message) {
    TANDEM_ASSIGN(const json::array* responses, optional_list(object, "tool_responses", path));
    for (std::size_t i = 0; i < responses->size(); ++i) {
      const std::string response_path = fmt::format("{}.tool_responses[{}]", path, i);
      TANDEM_ASSIGN(const json::object* response, expect_object(&(*responses)[i], response_path));
      ToolResponse result;
      result.name = "unknown";
      if (response->contains("name")) {
        TANDEM_ASSIGN(result.name, expect_text(member(*response, "name"), response_path + ".name"));
      }
      const json::value* value = response->if_contains("response");
      if (value == nullptr) return wrong(response_path + ".response", "missing");
      result.response = *value;
      message.tool_responses.push_back(std::move(result));
    }
    return {};
  }

  /// Puts the result of a message of role tool into the message whose call it answers.
  core::Status read_tool_result(const json::object& object, const std::string& path) {
    if (!takes_results_) {
      // The template skips it.
      return strict_
                 ? wrong(path, "a tool message must follow an assistant message with tool_calls")
                 : core::Status();
    }
    ToolResponse result;
    TANDEM_ASSIGN(result.response, read_tool_content(object, path + ".content"));
    result.name = "unknown";
    if (const json::value* name = member(object, "name")) {
      TANDEM_ASSIGN(result.name, expect_text(name, path + ".name"));
    }
    const json::value* id = member(object, "tool_call_id");
    const json::value wanted = id == nullptr ? json::value() : *id;
    const std::vector<ToolCall>& calls = messages_.back().tool_calls;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (call_ids_[i] == wanted) result.name = calls[i].name;
    }
    messages_.back().tool_responses.push_back(std::move(result));
    return {};
  }

  core::Result<json::value> read_tool_content(const json::object& object, const std::string& path) {
    const json::value* content = member(object, "content");
    if (content == nullptr) return json::value();
    if (content->is_array()) {
      TANDEM_ASSIGN(const std::vector<ContentPart> parts, read_content(content, "tool", path));
      std::string text;
      for (const ContentPart& part : parts) text += part.text;
      return json::value(json::string(text));
    }
    if (as_text(*content) != nullptr || (!strict_ && !content->is_object())) return *content;
    return wrong(
        path, fmt::format("must be a string or a list of text parts, not {}", kind_name(*content)));
  }

  bool strict_;
  std::vector<Message> messages_;
  std::vector<json::value> call_ids_;  // of the last message's tool calls; null: none
  bool takes_results_ = false;         // whether the last message waits for tool results
};

core::Result<Tool> read_tool(const json::value& value, WireRules rules, const std::string& path) {
  TANDEM_ASSIGN(const json::object* object, expect_object(&value, path));
  const bool strict = rules == WireRules::kApi;
  if (const json::value* type = member(*object, "type"); strict && type != nullptr) {
    TANDEM_ASSIGN(const std::string name, expect_text(type, path + ".type"));
    if (name != "function") {
      return wrong(path + ".type",
                   fmt::format("unknown tool type \"{}\"; only function is supported", name));
    }
  }
  TANDEM_ASSIGN(const json::object* function,
                expect_object(member(*object, "function"), path + ".function"));
  if (strict) {
    TANDEM_ASSIGN(const std::string name,
                  expect_text(member(*function, "name"), path + ".function.name"));
    if (name.empty()) return wrong(path + ".function.name", "must not be empty");
    if (!is_call_name(name)) {
      return wrong(path + ".function.name", "must not hold white space or any of {}[],:");
    }
    if (const auto* description = member(*function, "description")) {
      TANDEM_TRY(expect_text(description, path + ".function.description").status());
    }
    if (const auto* parameters = member(*function, "parameters")) {
      TANDEM_TRY(expect_object(parameters, path + ".function.parameters").status());
    }
  }
  Tool tool;
  for (const auto& [key, field] : *function) {
    if (!field.is_null()) tool.function[key] = field;
  }
  return tool;
}

}  // namespace

core::Result<Conversation> parse_conversation(const json::array& messages, const json::array* tools,
                                              WireRules rules) {
  if (messages.empty()) return wrong("messages", "must not be empty");
  MessageReader reader(rules);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    TANDEM_TRY(reader.read(messages[i], fmt::format("messages[{}]", i)));
  }
  Conversation conversation;
  conversation.messages = reader.take();
  for (std::size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    TANDEM_ASSIGN(Tool tool, read_tool((*tools)[i], rules, fmt::format("tools[{}]", i)));
    conversation.tools.push_back(std::move(tool));
  }
  if (conversation.messages.empty()) {
    return wrong("messages", "must hold more than tool results");
  }
  return conversation;
}

}  // namespace tandem::chat
