#pragma once

#include <memory>
#include <string>

#include "tandem/model/model_files.h"

namespace tandem::model {

/// ModelFiles of a GGUF file; see ModelFiles::open.
core::Result<std::unique_ptr<ModelFiles>> open_gguf_files(const std::string& path);

}  // namespace tandem::model
