#include "tandem/server/openai_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <utility>

#include "tandem/chat/normalize.h"
#include "tandem/server/body_reader.h"
#include "tandem/server/json_text.h"
#include "tandem/server/thinking.h"
#include "tandem/server/unsupported.h"

namespace tandem::server {

namespace json = boost::json;

namespace {

template <const char*... kTexts>
bool is_text(const json::value& value) {
  const auto text = text_of(value);
  return text && ((*text == kTexts) || ...);
}
bool is_text_only(const json::value& value) {
  const auto* array = value.if_array();
  return array != nullptr && array->size() == 1 && text_of(array->front()) == "text";
}

constexpr char kNone[] = "none";
constexpr char kAuto[] = "auto";
constexpr char kMedium[] = "medium";
constexpr char kDeepseek[] = "deepseek";  // thoughts apart from the content

constexpr Unsupported kUnsupportedInChat[] = {
    {"functions", is_empty},
    {"function_call", is_text<kNone, kAuto>},
    {"modalities", is_text_only},
    {"audio", never},
    {"prediction", never},
    {"verbosity", is_text<kMedium>},
    {"web_search_options", never},
    {"store", is_false},
    {"chat_template", never},
    {"continue_final_message", is_false},
    {"documents", is_empty},
    {"reasoning_format", is_text<kAuto, kDeepseek>},
    {"echo", is_false},
    {"include_reasoning", is_true},
    {"add_special_tokens", is_false},
};

constexpr Unsupported kUnsupportedInCompletions[] = {
    {"suffix", is_empty},
    {"prompt_embeds", never},
    {"add_special_tokens", is_true},
};

bool is_media(std::string_view part_type) {
  constexpr std::array<std::string_view, 9> kMedia = {"image_url",   "input_image", "image",
                                                      "input_audio", "audio_url",   "audio",
                                                      "video_url",   "video",       "file"};
  return std::find(kMedia.begin(), kMedia.end(), part_type) != kMedia.end();
}

/// Refuses parts that are no text: the prompt would only hold their placeholders.
void refuse_media(BodyReader& reader, const json::array& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto* message = messages[i].if_object();
    const auto* content = message == nullptr ? nullptr : message->if_contains("content");
    const auto* parts = content == nullptr ? nullptr : content->if_array();
    for (std::size_t j = 0; parts != nullptr && j < parts->size(); ++j) {
      const auto* part = (*parts)[j].if_object();
      const auto* type = part == nullptr ? nullptr : part->if_contains("type");
      const auto text = type == nullptr ? std::nullopt : text_of(*type);
      if (text && is_media(*text)) {
        reader.fail(not_supported(fmt::format("messages[{}].content[{}].{}", i, j, *text)));
      }
    }
  }
}

/// The chat library's messages begin with the member that is wrong.
ApiError from_conversation_error(const core::Status& status) {
  const std::string& message = status.message();
  const std::size_t colon = message.find(": ");
  const bool names_member = (message.starts_with("messages") || message.starts_with("tools")) &&
                            colon != std::string::npos;
  return invalid_request(message, names_member ? message.substr(0, colon) : "messages");
}

/// What `tool_choice` asks for.
struct ToolChoice {
  enum class Mode { kNone, kAuto, kRequired } mode = Mode::kAuto;
  std::string name;  // required: this function; empty: any
};

/// The name in {"type":"function","function":{"name":..}}, or flat as /v1/responses has it.
std::string named_function(const json::object& choice) {
  const json::value* type = choice.if_contains("type");
  if (type == nullptr || text_of(*type) != "function") return {};
  const json::value* function = choice.if_contains("function");
  const json::object* holder = function == nullptr ? &choice : function->if_object();
  const json::value* name = holder == nullptr ? nullptr : holder->if_contains("name");
  return name == nullptr ? std::string() : std::string(text_of(*name).value_or(""));
}

ToolChoice read_tool_choice(BodyReader& reader) {
  using Mode = ToolChoice::Mode;
  const json::value* value = reader.find("tool_choice");
  if (value == nullptr) return {};
  const auto text = text_of(*value);
  if (text == "none") return {Mode::kNone, {}};
  if (text == "auto") return {};
  if (text == "required") return {Mode::kRequired, {}};
  const json::object* object = value->if_object();
  const std::string name = object == nullptr ? std::string() : named_function(*object);
  if (name.empty()) {
    reader.fail("tool_choice",
                "must be \"none\", \"auto\", \"required\" or an object that names "
                "a function");
  }
  return {Mode::kRequired, name};
}

std::string name_of(const chat::Tool& tool) {
  const json::value* name = tool.function.if_contains("name");
  return name == nullptr ? std::string() : std::string(text_of(*name).value_or(""));
}
bool is_strict(const chat::Tool& tool) {
  const json::value* strict = tool.function.if_contains("strict");
  return strict != nullptr && is_true(*strict);
}

void read_chat_logprobs(BodyReader& reader, GenerationParams& params) {
  const bool is_wanted = reader.boolean("logprobs").value_or(false);
  const auto top = reader.integer("top_logprobs", 0, kernels::kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !is_wanted) {
    return reader.fail("top_logprobs", "is only allowed when 'logprobs' is true");
  }
  if (is_wanted) params.logprobs = static_cast<int>(top.value_or(0));
}

void read_prompts(BodyReader& reader, std::vector<Prompt>& prompts) {
  const json::value* value = reader.find("prompt");
  const auto fail = [&reader] {
    reader.fail("prompt", "must be a string, an array of token ids, or an array of either");
  };
  if (value == nullptr) return fail();
  const json::array* array = value->if_array();
  if (array == nullptr || (!array->empty() && array->front().is_number())) {
    auto prompt = read_prompt(*value);
    if (!prompt) return fail();
    prompts.push_back(std::move(*prompt));
    return;
  }
  if (array->empty() || array->size() > kMaxChoices) {
    return reader.fail("prompt", fmt::format("must hold 1 to {} prompts", kMaxChoices));
  }
  for (const json::value& item : *array) {
    auto prompt = read_prompt(item);
    if (!prompt) return fail();
    prompts.push_back(std::move(*prompt));
  }
}

}  // namespace

void read_form_of_calls(BodyReader& reader, ChatRequest& request) {
  const ToolChoice choice = read_tool_choice(reader);
  const std::vector<chat::Tool>& tools = request.conversation.tools;
  const bool is_required = choice.mode == ToolChoice::Mode::kRequired;
  grammar::CallSource calls;
  calls.must_call = is_required;
  calls.may_repeat = request.parallel_tool_calls;
  bool has_strict = false;
  for (const chat::Tool& tool : tools) {
    std::string name = name_of(tool);
    if (!choice.name.empty() && name != choice.name) continue;
    has_strict |= is_strict(tool);
    const json::value* schema = tool.function.if_contains("parameters");
    calls.functions.push_back({std::move(name), is_strict(tool) && schema != nullptr
                                                    ? exact_json(*schema)
                                                    : std::string()});
  }
  if (is_required && calls.functions.empty()) {
    return reader.fail("tool_choice", "asks for a function that is not among 'tools'");
  }
  auto& format = request.params.format;
  if (calls.functions.empty() || (!format && !is_required && !has_strict)) return;
  if (!format) {
    format = {{}, "tools"};
    format->source.kind = grammar::Source::Kind::kAnyText;
  }
  format->source.calls = std::move(calls);
}

std::optional<Prompt> read_prompt(const json::value& value) {
  if (const auto text = text_of(value)) return std::string(*text);
  const json::array* array = value.if_array();
  if (array == nullptr || array->empty()) return std::nullopt;
  return token_ids(*array);
}

void read_conversation(BodyReader& reader, const json::array& messages, const json::array* tools,
                       chat::Conversation& conversation) {
  refuse_media(reader, messages);
  const bool shows_tools = read_tool_choice(reader).mode != ToolChoice::Mode::kNone;
  if (reader.error()) return;
  auto parsed = chat::parse_conversation(messages, tools);
  if (!parsed.ok()) return reader.fail(from_conversation_error(parsed.status()));
  conversation.messages = std::move(parsed->messages);
  if (shows_tools) conversation.tools = std::move(parsed->tools);
}

void read_conversation(BodyReader& reader, chat::Conversation& conversation) {
  const json::value* value = reader.find("messages");
  const json::array* messages = value == nullptr ? nullptr : value->if_array();
  if (messages == nullptr || messages->empty()) {
    return reader.fail("messages", "must be an array of at least one message");
  }
  const json::value* tools = reader.find("tools");
  if (tools != nullptr && !tools->is_array()) return reader.fail("tools", "must be an array");
  conversation.enable_thinking = read_thinking(reader).is_on;
  conversation.add_generation_prompt = reader.boolean("add_generation_prompt").value_or(true);
  read_conversation(reader, *messages, tools == nullptr ? nullptr : tools->if_array(),
                    conversation);
}

std::variant<ChatRequest, ApiError> parse_chat_request(std::string_view body,
                                                       const kernels::SamplingParams& defaults) {
  const auto parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  BodyReader reader(std::get<json::object>(parsed));
  ChatRequest request;
  request.params = read_params(reader, defaults);
  request.params.thought_budget = read_thinking(reader).budget;
  read_chat_logprobs(reader, request.params);
  read_prompt_logprobs(reader, request.params);
  refuse_unsupported(reader, kUnsupportedInChat);
  request.parallel_tool_calls = reader.boolean("parallel_tool_calls").value_or(true);
  if (!reader.error()) read_conversation(reader, request.conversation);
  if (!reader.error()) read_form_of_calls(reader, request);
  if (reader.error()) return *reader.error();
  return request;
}

std::variant<CompletionRequest, ApiError> parse_completion_request(
    std::string_view body, const kernels::SamplingParams& defaults) {
  const auto parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  BodyReader reader(std::get<json::object>(parsed));
  CompletionRequest request;
  request.params = read_params(reader, defaults, /*least_tokens=*/0);
  if (const auto count = reader.integer("logprobs", 0, kernels::kMaxTopLogprobs)) {
    request.params.logprobs = static_cast<int>(*count);
  }
  read_prompt_logprobs(reader, request.params);
  refuse_unsupported(reader, kUnsupportedInCompletions);
  request.echo = reader.boolean("echo").value_or(false);
  read_prompts(reader, request.prompts);
  if (request.prompts.size() * static_cast<std::size_t>(request.params.n) > kMaxChoices) {
    reader.fail("n", fmt::format("times the number of prompts must be at most {}", kMaxChoices));
  }
  if (reader.error()) return *reader.error();
  return request;
}

}  // namespace tandem::server
