#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tandem/core/status.h"

namespace tandem::bench {

/// The first human turn of each conversation of a ShareGPT V3 file, in file order, at most `limit`
/// of them: a JSON array of {"conversations": [{"from", "value"}, ...]}. Conversations without a
/// human turn, or whose first one is blank, are skipped. Reads no further than it needs, so the
/// full 640 MB data set costs no more memory than its longest conversation.
/// kNotFound (no such file), kDataLoss (not such a file: what, at which entry), kInvalidArgument
/// (no usable conversation).
core::Result<std::vector<std::string>> read_sharegpt(const std::string& path, std::size_t limit);

}  // namespace tandem::bench
