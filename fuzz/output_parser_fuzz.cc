// Any tokens as a model's answer, in any grouping: the joined deltas are the same, a call's
// arguments are JSON, and no special token shows but those that a broken call spells out.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "chat_vocab.h"
#include "tandem/chat/output_parser.h"
#include "tandem/chat/wire_json.h"
#include "tandem/core/utf8.h"
#include "tandem/tokenizer/tokenizer.h"

namespace {

using namespace tandem;

using fuzz::require;

chat::OutputDelta parse(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> ids,
                        std::size_t group) {
  chat::OutputParser parser(tokenizer);
  chat::OutputDelta whole;
  const auto add = [&whole](chat::OutputDelta delta) {
    for (chat::OutputPart& part : delta.parts) whole.add(std::move(part));
  };
  while (!ids.empty()) {
    const std::size_t count = std::min(group, ids.size());
    add(parser.push(ids.first(count)));
    ids = ids.subspan(count);
  }
  add(parser.finish());
  chat::OutputMessage message;
  message.add(whole);
  require(parser.has_calls() == !message.calls.empty());
  return whole;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = fuzz::chat_tokenizer();
  const auto vocab_size = static_cast<unsigned>(tokenizer->vocab_size());
  std::vector<TokenId> ids;  // two bytes an id: most are not bytes
  for (std::size_t i = 0; i + 1 < size; i += 2) {
    ids.push_back(static_cast<TokenId>((data[i] % 4 == 0 ? data[i + 1] : 256U + data[i + 1] % 20U) %
                                       vocab_size));
  }
  const chat::OutputDelta single = parse(*tokenizer, ids, 1);
  for (const std::size_t group : {2U, 3U, 1000U}) {
    require(parse(*tokenizer, ids, group).parts == single.parts);
  }
  chat::OutputMessage message;
  message.add(single);
  for (const chat::ParsedCall& call : message.calls) {
    require(chat::parse_json(call.arguments).ok());
  }
  for (const chat::OutputPart& part : single.parts) {
    require(core::sanitize_utf8(part.text) == part.text);  // no character is cut
  }
  return 0;
}
