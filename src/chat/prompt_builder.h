#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "tandem/tokenizer/tokenizer.h"

namespace tandem::chat {

/// Collects a prompt, keeping what the template writes apart from what came from the client.
class PromptBuilder {
 public:
  /// Text of the template: its special tokens are tokens.
  PromptBuilder& markup(std::string_view text) { return append(text, true); }
  /// Text of the client: whatever it spells stays text.
  PromptBuilder& text(std::string_view text) { return append(text, false); }

  std::vector<tokenizer::TextPiece> take() { return std::move(pieces_); }

 private:
  PromptBuilder& append(std::string_view text, bool match_special) {
    if (text.empty()) return *this;
    if (pieces_.empty() || pieces_.back().match_special != match_special) {
      pieces_.push_back({{}, match_special});
    }
    pieces_.back().text += text;
    return *this;
  }

  std::vector<tokenizer::TextPiece> pieces_;
};

}  // namespace tandem::chat
