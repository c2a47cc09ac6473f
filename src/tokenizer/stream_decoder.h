#pragma once

#include <string>

#include "tandem/core/units.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

/// Turns ids into UTF-8 text as they come, never cutting a character: bytes of an unfinished
/// character wait for the next id. Ill-formed bytes become U+FFFD per maximal subpart. The joined
/// pieces do not depend on how the ids are grouped. Thread: one.
class StreamDecoder {
 public:
  /// show_control: write control tokens out literally. User-defined tokens always are.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_control = false)
      : tokenizer_(&tokenizer), show_control_(show_control) {}

  /// Text that became certain with this id; may be empty.
  std::string push(TokenId id);
  /// What is left at the end: U+FFFD if a character is unfinished, else empty.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool show_control_;
  std::string pending_;  // an unfinished character, at most 3 bytes
};

}  // namespace tandem::tokenizer
