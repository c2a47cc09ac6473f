#pragma once

#include <optional>
#include <string>
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
  /// `tokenizer` must outlive the output.
  Output(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops, bool ignore_eos)
      : tokenizer_(&tokenizer),
        decoder_(tokenizer),
        stop_(std::move(stops)),
        ignore_eos_(ignore_eos) {}

  /// Appends the text that became certain to `text`. True if the output ends with this token. An
  /// end token gives no text.
  bool push(TokenId token, std::string& text) {
    if (!ignore_eos_ && tokenizer_->is_end_of_generation(token)) return true;
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
  bool ignore_eos_;
};

}  // namespace tandem::engine
