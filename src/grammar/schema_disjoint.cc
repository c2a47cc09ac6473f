#include "tandem/grammar/schema_disjoint.h"

#include <algorithm>
#include <string>

namespace tandem::grammar {
namespace {

constexpr int kMaxDepth = 16;

/// Those of `a`, if it lists any, that have one of the types and are among `b`'s, if it lists any.
bool share_values(const SchemaParts& a, const SchemaParts& b, unsigned types) {
  return std::any_of(a.values->begin(), a.values->end(), [&](const SchemaParts::Value& value) {
    const bool is_listed =
        !b.values || std::any_of(b.values->begin(), b.values->end(),
                                 [&](const auto& other) { return is_equal(value, other); });
    return is_listed && (type_of(value) & types) != 0;
  });
}

bool are_apart(double min, const std::optional<double>& max) {
  return max && *max < min;
}

/// Whether a property that `a` requires rules `b` out.
core::Result<bool> has_discriminator(SchemaReader& reader, const SchemaParts& a,
                                     const SchemaParts& b, int depth) {
  for (const std::string& name : a.required) {
    SchemaParts of_a, of_b;
    for (const auto* schema : a.schemas_of(name)) TANDEM_TRY(reader.add(*schema, of_a));
    for (const auto* schema : b.schemas_of(name)) TANDEM_TRY(reader.add(*schema, of_b));
    if (of_b.allows_nothing()) return true;
    TANDEM_ASSIGN(const bool is_disjoint, are_disjoint(reader, of_a, of_b, depth + 1));
    if (is_disjoint) return true;
  }
  return false;
}

}  // namespace

core::Result<bool> are_disjoint(SchemaReader& reader, const SchemaParts& a, const SchemaParts& b,
                                int depth) {
  TANDEM_TRY(reader.spend());
  if (depth > kMaxDepth) return false;
  unsigned common = a.types & b.types;
  if (a.values && !share_values(a, b, common)) return true;
  if (b.values && !share_values(b, a, common)) return true;
  if (a.values || b.values) return common == 0;
  constexpr unsigned kNumberTypes = kIntegerType | kFractionType;
  if (a.numbers.is_apart_from(b.numbers)) common &= ~kNumberTypes;
  if (are_apart(a.min_length, b.max_length) || are_apart(b.min_length, a.max_length)) {
    common &= ~unsigned{kStringType};
  }
  if (are_apart(a.min_items, b.max_items) || are_apart(b.min_items, a.max_items)) {
    common &= ~unsigned{kArrayType};
  }
  if ((common & kObjectType) != 0) {
    TANDEM_ASSIGN(bool is_told, has_discriminator(reader, a, b, depth));
    if (!is_told) {
      TANDEM_ASSIGN(is_told, has_discriminator(reader, b, a, depth));
    }
    if (is_told) common &= ~unsigned{kObjectType};
  }
  return common == 0;
}

}  // namespace tandem::grammar
