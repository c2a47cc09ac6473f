#pragma once

#include <string>

#include "tandem/core/status.h"
#include "tandem/formats/gguf.h"
#include "tandem/tokenizer/vocab.h"

namespace tandem::model {

/// The vocabulary stored in a GGUF file. kNotFound names the key that is missing, kDataLoss one
/// that is wrong; kUnimplemented: a tokenizer of another family.
core::Result<tokenizer::VocabData> read_vocab(const formats::GgufFile& file);

/// The chat template (Jinja) stored in a GGUF file; kNotFound if it has none.
core::Result<std::string> read_chat_template(const formats::GgufFile& file);

}  // namespace tandem::model
