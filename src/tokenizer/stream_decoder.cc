#include "tandem/tokenizer/stream_decoder.h"

#include <utility>

#include "tandem/core/utf8.h"

namespace tandem::tokenizer {

namespace {

/// True for the first two bytes of an encoded surrogate. They are ill-formed already, but are held
/// until the third is there, so that its U+FFFD come together (as Python's decoder does it).
bool is_cut_surrogate(std::string_view bytes) {
  return bytes.size() == 2 && bytes[0] == '\xED' && (bytes[1] & 0xE0) == 0xA0;
}

}  // namespace

std::string StreamDecoder::push(TokenId id) {
  TANDEM_CHECK(id >= 0 && id < tokenizer_->vocab_size(), "a token id outside the vocabulary");
  if (tokenizer_->kind(id) == TokenKind::kControl && !show_control_) return {};
  pending_ += tokenizer_->bytes(id);
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const core::Utf8Char c = core::decode_utf8(rest);
    if (c.kind == core::Utf8Char::Kind::kTruncated || is_cut_surrogate(rest)) break;
    text +=
        c.kind == core::Utf8Char::Kind::kValid ? rest.substr(0, c.length) : core::kReplacementUtf8;
    rest.remove_prefix(c.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string StreamDecoder::flush() {
  return core::sanitize_utf8(std::exchange(pending_, {}));
}

}  // namespace tandem::tokenizer
