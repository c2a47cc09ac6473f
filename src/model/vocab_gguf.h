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

/// Whether two files spell the same tokens under the same ids: kFailedPrecondition names the first
/// that differs. A file without a vocabulary agrees with any.
core::Status check_same_vocab(const formats::GgufFile& target, const formats::GgufFile& drafter);

}  // namespace tandem::model
