#include "tandem/server/openai_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <limits>
#include <span>
#include <utility>

#include "tandem/chat/normalize.h"
#include "tandem/chat/wire_json.h"
#include "tandem/server/body_reader.h"

namespace tandem::server {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 1024;
constexpr int kMaxInt = std::numeric_limits<int>::max();

/// A member that this server cannot honour, and the values that ask for nothing.
struct Unsupported {
  std::string_view name;
  bool (*is_neutral)(const json::value& value);
};

bool never(const json::value&) {
  return false;
}
bool is_false(const json::value& value) {
  return value.is_bool() && !value.get_bool();
}
bool is_zero(const json::value& value) {
  return value.is_number() && value.to_number<double>() == 0;
}
bool is_one(const json::value& value) {
  return value.is_number() && value.to_number<double>() == 1;
}
bool is_empty(const json::value& value) {
  if (const auto* object = value.if_object()) return object->empty();
  if (const auto* array = value.if_array()) return array->empty();
  const auto text = text_of(value);
  return text && text->empty();
}
template <const char*... kTexts>
bool is_text(const json::value& value) {
  const auto text = text_of(value);
  return text && ((*text == kTexts) || ...);
}
bool is_plain_text_format(const json::value& value) {
  const auto* object = value.if_object();
  const auto* type = object == nullptr ? nullptr : object->if_contains("type");
  return type != nullptr && text_of(*type) == "text";
}
bool is_text_only(const json::value& value) {
  const auto* array = value.if_array();
  return array != nullptr && array->size() == 1 && text_of(array->front()) == "text";
}
/// vLLM's switches of the chat template: thinking is off, the others have no effect here.
bool is_without_thinking(const json::value& value) {
  const auto* object = value.if_object();
  if (object == nullptr) return false;
  const auto* thinking = object->if_contains("enable_thinking");
  return thinking == nullptr || thinking->is_null() || is_false(*thinking);
}

constexpr char kNone[] = "none";
constexpr char kAuto[] = "auto";
constexpr char kMedium[] = "medium";

constexpr Unsupported kUnsupportedAnywhere[] = {
    {"n", is_one},
    {"best_of", is_one},
    {"logit_bias", is_empty},
    {"presence_penalty", is_zero},
    {"frequency_penalty", is_zero},
    {"repetition_penalty", is_one},
    {"repeat_penalty", is_one},
    {"min_tokens", is_zero},
    {"stop_token_ids", is_empty},
    {"prompt_logprobs", never},
    {"guided_json", never},
    {"guided_regex", never},
    {"guided_choice", never},
    {"guided_grammar", never},
    {"structured_outputs", never},
    {"grammar", is_empty},
    {"json_schema", never},
    {"response_format", is_plain_text_format},
};

constexpr Unsupported kUnsupportedInChat[] = {
    {"tools", is_empty},
    {"tool_choice", is_text<kNone, kAuto>},
    {"functions", is_empty},
    {"function_call", is_text<kNone, kAuto>},
    {"logprobs", is_false},
    {"top_logprobs", is_zero},
    {"modalities", is_text_only},
    {"audio", never},
    {"prediction", never},
    {"reasoning_effort", is_text<kNone>},
    {"verbosity", is_text<kMedium>},
    {"web_search_options", never},
    {"store", is_false},
    {"chat_template", never},
    {"chat_template_kwargs", is_without_thinking},
    {"continue_final_message", is_false},
};

constexpr Unsupported kUnsupportedInCompletions[] = {
    {"logprobs", never},
    {"echo", is_false},
    {"suffix", is_empty},
};

void refuse_unsupported(BodyReader& reader, std::span<const Unsupported> members) {
  for (const Unsupported& member : members) {
    const json::value* value = reader.find(member.name);
    if (value != nullptr && !member.is_neutral(*value)) reader.fail(not_supported(member.name));
  }
}

void read_stop(BodyReader& reader, std::vector<std::string>& stop) {
  const json::value* value = reader.find("stop");
  if (value == nullptr) return;
  const auto is_usable = [](std::string_view text) {
    return !text.empty() && text.size() <= kMaxStopBytes;
  };
  const auto fail = [&reader] {
    reader.fail("stop", fmt::format("must be a string or an array of at most {} strings, each of "
                                    "1 to {} bytes",
                                    kMaxStops, kMaxStopBytes));
  };
  if (const auto text = text_of(*value)) {
    if (!is_usable(*text)) return fail();
    stop.emplace_back(*text);
    return;
  }
  const json::array* array = value->if_array();
  if (array == nullptr || array->size() > kMaxStops) return fail();
  for (const json::value& item : *array) {
    const auto text = text_of(item);
    if (!text || !is_usable(*text)) return fail();
    stop.emplace_back(*text);
  }
}

void read_stream_options(BodyReader& reader, GenerationParams& params) {
  const json::value* value = reader.find("stream_options");
  if (value == nullptr) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.fail("stream_options", "must be an object");
  if (!params.stream) {
    return reader.fail("stream_options", "is only allowed when 'stream' is true");
  }
  BodyReader options(*object, "stream_options");
  params.include_usage = options.boolean("include_usage").value_or(false);
  const json::value* continuous = options.find("continuous_usage_stats");
  if (continuous != nullptr && !is_false(*continuous)) {
    options.fail(not_supported("stream_options.continuous_usage_stats"));
  }
  if (options.error()) reader.fail(*options.error());
}

void read_sampling(BodyReader& reader, kernels::SamplingParams& sampling) {
  if (const auto value = reader.number("temperature", 0, 2)) {
    sampling.temperature = static_cast<float>(*value);
  }
  if (const auto value = reader.integer("top_k", -1, kMaxInt)) {
    sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(*value, 0));  // -1: off
  }
  if (const auto value = reader.number("top_p", 0, 1)) {
    // 0 keeps the best token alone, as any value below its probability does.
    sampling.top_p = std::max(static_cast<float>(*value), std::numeric_limits<float>::min());
  }
  if (const auto value = reader.number("min_p", 0, 1)) {
    sampling.min_p = static_cast<float>(*value);
  }
}

GenerationParams read_params(BodyReader& reader, const kernels::SamplingParams& defaults) {
  GenerationParams params;
  params.model = std::string(reader.string("model").value_or(""));
  params.sampling = defaults;
  read_sampling(reader, params.sampling);
  constexpr auto kAnyInteger = std::numeric_limits<std::int64_t>::min();
  if (const auto seed =
          reader.integer("seed", kAnyInteger, std::numeric_limits<std::int64_t>::max())) {
    params.seed = static_cast<std::uint64_t>(*seed);
  }
  const auto max_tokens = reader.integer("max_tokens", 1, kMaxInt);
  const auto max_completion_tokens = reader.integer("max_completion_tokens", 1, kMaxInt);
  params.max_tokens = static_cast<int>(max_completion_tokens.value_or(max_tokens.value_or(0)));
  read_stop(reader, params.stop);
  params.ignore_eos = reader.boolean("ignore_eos").value_or(false);
  if (const auto length = reader.integer("draft_length", 0, kMaxDraft)) {
    params.draft_length = static_cast<int>(*length);
  }
  params.stream = reader.boolean("stream").value_or(false);
  read_stream_options(reader, params);
  reader.string("user");
  refuse_unsupported(reader, kUnsupportedAnywhere);
  return params;
}

bool is_media(std::string_view part_type) {
  constexpr std::array<std::string_view, 6> kMedia = {"image_url", "input_image", "input_audio",
                                                      "audio_url", "video_url",   "file"};
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
  const bool names_member = message.starts_with("messages") && colon != std::string::npos;
  return invalid_request(message, names_member ? message.substr(0, colon) : "messages");
}

void read_conversation(BodyReader& reader, chat::Conversation& conversation) {
  const json::value* value = reader.find("messages");
  const json::array* messages = value == nullptr ? nullptr : value->if_array();
  if (messages == nullptr || messages->empty()) {
    return reader.fail("messages", "must be an array of at least one message");
  }
  refuse_media(reader, *messages);
  if (reader.error()) return;
  auto parsed = chat::parse_conversation(*messages, nullptr);
  if (!parsed.ok()) return reader.fail(from_conversation_error(parsed.status()));
  conversation = std::move(parsed).value();
  conversation.add_generation_prompt = reader.boolean("add_generation_prompt").value_or(true);
}

std::optional<std::vector<TokenId>> token_ids(const json::array& array) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const json::value& item : array) {
    const std::int64_t* number = item.if_int64();
    if (number == nullptr || *number < 0 || *number > kMaxInt) return std::nullopt;
    ids.push_back(static_cast<TokenId>(*number));
  }
  return ids;
}

void read_prompt(BodyReader& reader, CompletionRequest& request) {
  const json::value* value = reader.find("prompt");
  const auto fail = [&reader](std::string_view rule) {
    reader.fail("prompt", rule);
  };
  constexpr std::string_view kRule =
      "must be a string, an array of one string, or an array of token ids";
  if (value == nullptr) return fail(kRule);
  const json::array* array = value->if_array();
  if (array != nullptr && array->size() > 1 && !array->front().is_number()) {
    return fail("holds several prompts, which is not supported yet; send one prompt per request");
  }
  if (array != nullptr && array->size() == 1 && !array->front().is_number()) {
    value = &array->front();
    array = value->if_array();
  }
  if (const auto text = text_of(*value)) {
    request.prompt = std::string(*text);
    return;
  }
  if (array == nullptr || array->empty()) return fail(kRule);
  auto ids = token_ids(*array);
  if (!ids) return fail("holds something that is not a token id");
  request.prompt = std::move(*ids);
}

/// Parses the body and lets `read` fill the request in.
template <typename Request, typename Read>
std::variant<Request, ApiError> parse_body(std::string_view body, Read read) {
  const core::Result<json::value> value = chat::parse_json(body);
  if (!value.ok()) {
    return invalid_request("The body is not valid JSON: " + value.status().message() + ".");
  }
  const json::object* object = value->if_object();
  if (object == nullptr) return invalid_request("The body must be a JSON object.");
  BodyReader reader(*object);
  Request request;
  read(reader, request);
  if (reader.error()) return *reader.error();
  return request;
}

}  // namespace

std::variant<ChatRequest, ApiError> parse_chat_request(std::string_view body,
                                                       const kernels::SamplingParams& defaults) {
  return parse_body<ChatRequest>(body, [&defaults](BodyReader& reader, ChatRequest& request) {
    request.params = read_params(reader, defaults);
    refuse_unsupported(reader, kUnsupportedInChat);
    if (!reader.error()) read_conversation(reader, request.conversation);
  });
}

std::variant<CompletionRequest, ApiError> parse_completion_request(
    std::string_view body, const kernels::SamplingParams& defaults) {
  return parse_body<CompletionRequest>(body,
                                       [&defaults](BodyReader& reader, CompletionRequest& request) {
                                         request.params = read_params(reader, defaults);
                                         refuse_unsupported(reader, kUnsupportedInCompletions);
                                         read_prompt(reader, request);
                                       });
}

}  // namespace tandem::server
