#pragma once

#include "tandem/core/status.h"
#include "tandem/grammar/schema_parts.h"

namespace tandem::grammar {

/// Whether no value satisfies both, as far as can be seen type by type: by types, listed values,
/// bounds, lengths, or a required property that the other forbids or whose values are disjoint. A
/// oneOf of disjoint branches is an anyOf. Fails where the reader does.
core::Result<bool> are_disjoint(SchemaReader& reader, const SchemaParts& a, const SchemaParts& b,
                                int depth = 0);

}  // namespace tandem::grammar
