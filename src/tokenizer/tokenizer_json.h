#pragma once

#include <string>
#include <string_view>

#include "tandem/core/status.h"
#include "tandem/tokenizer/vocab.h"

namespace tandem::tokenizer {

/// Reads the text of a Hugging Face tokenizer.json (spec/tokenizer-chat.md section 1). The token
/// ids of VocabData stay unset: they are in other files. kDataLoss says what is wrong, without the
/// file's name; kUnimplemented: another kind of tokenizer than Gemma 4's. Takes about 100 MB for a
/// while at 262,144 tokens.
core::Result<VocabData> parse_tokenizer_json(std::string_view text);

/// The text of a tokenizer.json that reads back as `data`.
std::string write_tokenizer_json(const VocabData& data);

}  // namespace tandem::tokenizer
