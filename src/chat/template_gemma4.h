#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/chat/message.h"
#include "tandem/core/status.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::chat {

/// The two published templates differ in the generation prompt when thinking is off.
enum class TemplateVariant {
  kOpenTurn,      ///< E2B, E4B: the model turn is opened and nothing added
  kEmptyThought,  ///< 12B, 26B-A4B, 31B: an empty thought channel is added
};

/// Reads the variant off a model's own Jinja template text. kUnimplemented when the text is not a
/// Gemma 4 template (it lacks the turn markers), naming what was looked for.
core::Result<TemplateVariant> detect_variant(std::string_view jinja_template);

/// Renders a conversation to the prompt, byte for byte what the model's template gives
/// (spec/tokenizer-chat.md section 4). Text that came from the client is in pieces without special
/// matching. kInvalidArgument for what the template refuses (no messages, unresolvable ...), and
/// for everything if the model has no template.
core::Result<std::vector<tokenizer::TextPiece>> render(const Conversation& conversation,
                                                       std::optional<TemplateVariant> variant);

}  // namespace tandem::chat
