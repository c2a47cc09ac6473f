#pragma once

#include <optional>
#include <string>

#include "tandem/grammar/compiler.h"
#include "tandem/server/body_reader.h"

namespace tandem::server {

/// What the text of an answer must be, and which member says so.
struct OutputFormat {
  grammar::Source source;
  std::string param;
};

/// What a body says the text of its answer must be, if anything; what is wrong is in the reader's
/// error. Known are OpenAI's response_format, vLLM's structured_outputs and guided_*, llama.cpp's
/// grammar and json_schema, and regex and choice; one at a time.
std::optional<OutputFormat> read_output_format(BodyReader& reader);

/// The same for text.format of /v1/responses.
std::optional<OutputFormat> read_text_format(BodyReader& reader);

}  // namespace tandem::server
