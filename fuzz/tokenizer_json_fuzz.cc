// Any bytes as tokenizer.json: refused with a sentence, or a vocabulary that a tokenizer is made of
// or refuses.

#include <cstdint>
#include <string_view>
#include <utility>

#include "tandem/tokenizer/tokenizer.h"
#include "tandem/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem::tokenizer;
  auto vocab = parse_tokenizer_json({reinterpret_cast<const char*>(data), size});
  if (!vocab.ok()) {
    if (vocab.status().message().empty()) __builtin_trap();
    return 0;
  }
  const auto tokenizer = Tokenizer::create(std::move(vocab).value());
  if (tokenizer.ok()) (void)(*tokenizer)->encode("a <bos> b\n\xC3\xA9", true);
  return 0;
}
