#pragma once

#include <memory>
#include <string>

#include "tandem/model/model_files.h"

namespace tandem::model {

/// ModelFiles of a Hugging Face directory; see ModelFiles::open. Logs which parts of a multimodal
/// checkpoint stay unused.
core::Result<std::unique_ptr<ModelFiles>> open_hf_files(const std::string& directory);

}  // namespace tandem::model
