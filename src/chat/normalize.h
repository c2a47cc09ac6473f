#pragma once

#include <boost/json/array.hpp>

#include "tandem/chat/message.h"
#include "tandem/core/status.h"

namespace tandem::chat {

/// How much of what a client sends is taken.
enum class WireRules {
  kApi,  ///< the chat completions API: unknown roles and part types, and wrong types, are errors
  kTemplate,  ///< whatever the model's template renders; what it ignores is ignored (for goldens)
};

/// Reads the `messages` and `tools` members of a chat request into a Conversation, whose switches
/// the caller sets. Errors are kInvalidArgument and begin with the member that is wrong, for
/// example
///   messages[2].content[0].type: unknown content part type "foo"; use text
/// `tools` may be null. Both should come from parse_json, which keeps numbers exact.
///
/// What is normalized (tests/chat/README.md):
/// - arguments that are the JSON text of an object become the object; other text stays verbatim
/// - image_url/input_image, input_audio/audio_url and video_url parts become media parts; what they
///   point to is the caller's business, who must refuse media that the model cannot see
/// - null or missing content is none; content in parts is a list of parts
/// - null members of a tool's function are dropped
/// - tool messages move into the assistant message before them, as responses named after the call
///   with the same id, else by their own name, else "unknown"
core::Result<Conversation> parse_conversation(const boost::json::array& messages,
                                              const boost::json::array* tools,
                                              WireRules rules = WireRules::kApi);

}  // namespace tandem::chat
