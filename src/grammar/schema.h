#pragma once

#include <string_view>

#include "tandem/core/status.h"
#include "tandem/grammar/json_parts.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// Reads a JSON schema: the text must be one JSON value that is valid under it, with its keys in
/// the order of `properties`. Sound rather than complete: what the grammar allows is valid, but it
/// may leave out valid texts. It does so for
/// - the order of keys, and keys that the schema does not name, unless additionalProperties or
///   patternProperties allows them;
/// - white space beyond a space, or a new line and an indentation, after { [ , : and before } ];
/// - numbers of more than 18 digits before or behind the point, or three of an exponent;
/// - numbers with bounds, multipleOf or excluded values: those that write_numbers() promises;
/// - formats: date, time, date-time, uuid, email and ipv4 are kept; others only describe.
/// Exact but for these: all keywords that restrict values, where what they say together can be
/// kept. Refused with a sentence (kInvalidArgument): uniqueItems of other elements than a few
/// listed values; the complement of prefixItems, additionalProperties and the like (in not, if, or
/// a oneOf whose branches are not seen to rule each other out); unevaluated...; what would take too
/// many states; and what allows no value at all.
core::Result<RuleSet> read_schema(std::string_view schema);

/// The same among other rules: the rule of the schema's values, or of those that are objects.
core::Result<RuleId> add_schema(RuleSet& rules, JsonParts& parts, std::string_view schema,
                                bool objects_only);

/// Any JSON object.
RuleSet json_object_rules();

}  // namespace tandem::grammar
