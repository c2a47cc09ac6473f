#include "tandem/grammar/schema_disjoint.h"

#include <algorithm>
#include <string>

namespace tandem::grammar {
namespace {

constexpr int kMaxDepth = 16;

bool are_apart(double min, const std::optional<double>& max) {
  return max && *max < min;
}

bool may_write(const SchemaParts& parts, const std::string& name) {
  const bool is_known =
      std::any_of(parts.keys.begin(), parts.keys.end(), [&](const SchemaParts::Keys& keys) {
        return keys.pattern_properties != nullptr ||
               (keys.properties != nullptr && keys.properties->contains(name));
      });
  return is_known || parts.requires_key(name) || parts.is_open();
}

/// Whether none of the values that `a` lists is `b`'s, too.
core::Result<bool> share_no_value(SchemaReader& reader, const SchemaParts& a,
                                  const SchemaParts& b) {
  for (const SchemaParts::Value& value : *a.values) {
    TANDEM_ASSIGN(const bool is_of_a, reader.allows(a, value));
    if (!is_of_a) continue;
    TANDEM_ASSIGN(const bool is_of_b, reader.allows(b, value));
    if (is_of_b) return false;
  }
  return true;
}

core::Result<bool> differ_in_key(SchemaReader& reader, const SchemaParts& a, const SchemaParts& b,
                                 const std::string& name, int depth) {
  if (b.requires_key(name) && !may_write(a, name)) return true;
  TANDEM_ASSIGN(const auto schemas_of_a, reader.schemas_of(a, name));
  TANDEM_ASSIGN(const auto schemas_of_b, reader.schemas_of(b, name));
  TANDEM_ASSIGN(const SchemaParts of_a, reader.parts_of(schemas_of_a));
  TANDEM_ASSIGN(const SchemaParts of_b, reader.parts_of(schemas_of_b));
  return never_satisfies(reader, of_a, of_b, depth + 1);
}

core::Result<bool> differ_as_objects(SchemaReader& reader, const SchemaParts& a,
                                     const SchemaParts& b, int depth) {
  std::vector<std::string> names = a.required;
  names.insert(names.end(), b.required.begin(), b.required.end());
  for (const std::string& name : names) {
    TANDEM_ASSIGN(const bool is_told, differ_in_key(reader, a, b, name, depth));
    if (is_told) return true;
  }
  return false;
}

/// Whether `is_told` holds of each branch of the parts' last choice.
template <typename IsTold>
core::Result<bool> all_branches(SchemaReader& reader, const SchemaParts& parts, IsTold is_told) {
  TANDEM_ASSIGN(const auto branches, reader.branches(parts));
  for (const SchemaReader::Branch& branch : branches) {
    TANDEM_ASSIGN(const bool holds, is_told(branch.parts));
    if (!holds) return false;
  }
  return true;
}

core::Result<bool> differ_in_choices(SchemaReader& reader, const SchemaParts& a,
                                     const SchemaParts& b, int depth) {
  if (!a.choices.empty()) {
    TANDEM_ASSIGN(const bool is_told, all_branches(reader, a, [&](const SchemaParts& branch) {
                    return never_satisfies(reader, branch, b, depth + 1);
                  }));
    if (is_told) return true;
  }
  if (b.choices.empty()) return false;
  return all_branches(reader, b, [&](const SchemaParts& branch) {
    return never_satisfies(reader, a, branch, depth + 1);
  });
}

}  // namespace

core::Result<bool> never_satisfies(SchemaReader& reader, const SchemaParts& a, const SchemaParts& b,
                                   int depth) {
  TANDEM_TRY(reader.spend());
  if (depth > kMaxDepth) return false;
  unsigned common = a.types & b.types;
  if (a.allows_nothing() || b.allows_nothing() || common == 0) return true;
  if (a.values || b.values) {
    return a.values ? share_no_value(reader, a, b) : share_no_value(reader, b, a);
  }
  if (a.numbers.is_apart_from(b.numbers)) common &= ~(kIntegerType | kFractionType);
  if (are_apart(a.min_length, b.max_length) || are_apart(b.min_length, a.max_length)) {
    common &= ~unsigned{kStringType};
  }
  if (are_apart(a.min_items, b.max_items) || are_apart(b.min_items, a.max_items)) {
    common &= ~unsigned{kArrayType};
  }
  if ((common & kObjectType) != 0) {
    TANDEM_ASSIGN(const bool is_told, differ_as_objects(reader, a, b, depth));
    if (is_told) common &= ~unsigned{kObjectType};
  }
  if (common == 0) return true;
  return differ_in_choices(reader, a, b, depth);
}

core::Result<std::vector<SchemaReader::Branch>> exclusive_branches(SchemaReader& reader,
                                                                   const SchemaParts& parts) {
  TANDEM_ASSIGN(auto branches, reader.branches(parts));
  const SchemaParts::Choice& choice = parts.choices.back();
  if (!choice.is_one_of) return branches;
  const std::vector<SchemaReader::Branch> plain = branches;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (std::size_t j = 0; j < plain.size(); ++j) {
      if (i == j) continue;
      TANDEM_ASSIGN(const bool is_apart, never_satisfies(reader, plain[i].parts, plain[j].parts));
      if (is_apart) continue;
      branches[i].alone = nullptr;
      const core::Status status =
          reader.add_denied(*choice.branches[j][0].schema, branches[i].parts);
      if (!status.ok())
        return status.with_context("oneOf with branches that may overlap (try anyOf)");
    }
  }
  return branches;
}

}  // namespace tandem::grammar
