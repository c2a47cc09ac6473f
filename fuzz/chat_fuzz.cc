// Any bytes as a chat request: it is refused with a sentence or rendered. The same bytes as the
// text of a tool call: what is accepted is JSON.

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "tandem/chat/call_syntax.h"
#include "tandem/chat/normalize.h"
#include "tandem/chat/template_gemma4.h"
#include "tandem/chat/wire_json.h"
#include "tandem/core/utf8.h"

namespace {

using namespace tandem;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

void render_request(const boost::json::object& request, chat::WireRules rules) {
  const auto* messages = request.if_contains("messages");
  const auto* tools = request.if_contains("tools");
  if (messages == nullptr || !messages->is_array()) return;
  auto conversation = chat::parse_conversation(
      messages->get_array(), tools == nullptr ? nullptr : tools->if_array(), rules);
  if (!conversation.ok()) {
    require(!conversation.status().message().empty());
    return;
  }
  for (const bool thinking : {false, true}) {
    conversation->enable_thinking = thinking;
    const auto pieces = chat::render(*conversation, chat::TemplateVariant::kEmptyThought);
    if (pieces.ok()) require(pieces->front().text.starts_with("<bos>"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (const auto parsed = chat::parse_json(input); parsed.ok() && parsed->is_object()) {
    render_request(parsed->get_object(), chat::WireRules::kApi);
    render_request(parsed->get_object(), chat::WireRules::kTemplate);
  }
  // Well-formed text only: that is what a decoder hands to the parser.
  std::string text;
  for (const char c : core::sanitize_utf8(input)) text += c == '\x01' ? chat::kQuoteMark : c;
  chat::CallReader call;
  std::string json;
  call.push(text, json);
  chat::CallReader pieces;
  std::string json_of_pieces;
  for (const char& c : text) pieces.push({&c, 1}, json_of_pieces);
  require(call.is_whole() == pieces.is_whole() && call.name() == pieces.name());
  require(json == json_of_pieces);
  if (call.is_whole()) {
    // The spelling of a number is kept even where the exponent is beyond what can be read.
    const auto arguments = chat::parse_json(json);
    require(arguments.ok() || arguments.status().message().find("exponent") != std::string::npos);
  }
  return 0;
}
