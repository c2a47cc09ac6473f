#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/engine/request.h"
#include "tandem/engine/stop.h"
#include "tandem/tokenizer/stream_decoder.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::engine {

/// Chosen tokens of one request to text, token by token, so that it makes no difference how many
/// came in one step; finds the end. Thread: engine.
class Output {
 public:
  /// stop_tokens: end the output beside the vocabulary's end tokens, which ignore_eos turns off.
  /// `tokenizer` must outlive the output.
  Output(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
         std::vector<TokenId> stop_tokens, bool ignore_eos)
      : tokenizer_(&tokenizer),
        decoder_(tokenizer),
        stop_(std::move(stops)),
        stop_tokens_(std::move(stop_tokens)),
        ignore_eos_(ignore_eos) {}

  bool is_end(TokenId token) const {
    return (!ignore_eos_ && tokenizer_->is_end_of_generation(token)) ||
           std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  }

  /// Appends the text that became certain to `text`. True if the output ends with this token. An
  /// end token gives no text.
  bool push(TokenId token, std::string& text) {
    if (is_end(token)) return true;
    text += stop_.push(decoder_.push(token));
    return stop_.found();
  }

  /// Appends what was held back; at the end of every output that was not cut short.
  void flush(std::string& text) {
    text += stop_.push(decoder_.flush());
    if (!stop_.found()) text += stop_.flush();
  }

 private:
  const tokenizer::Tokenizer* tokenizer_;
  tokenizer::StreamDecoder decoder_;
  StopFilter stop_;
  std::vector<TokenId> stop_tokens_;
  bool ignore_eos_;
};

}  // namespace tandem::engine
