#pragma once

#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/schema_reader.h"

namespace tandem::grammar {

/// Whether no text that is written for `a` satisfies `b`, as far as can be seen type by type: by
/// types, listed values, bounds, lengths, or a key that `b` requires and `a` never writes, or one
/// that is required and whose values differ. False where that is not seen.
core::Result<bool> never_satisfies(SchemaReader& reader, const SchemaParts& a, const SchemaParts& b,
                                   int depth = 0);

/// SchemaReader::branches(); those of a oneOf rule each other out.
core::Result<std::vector<SchemaReader::Branch>> exclusive_branches(SchemaReader& reader,
                                                                   const SchemaParts& parts);

}  // namespace tandem::grammar
