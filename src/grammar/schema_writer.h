#pragma once

#include <boost/json/value.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/json_parts.h"
#include "tandem/grammar/rule_set.h"
#include "tandem/grammar/schema_reader.h"

namespace tandem::grammar {

/// Writes the rules of a schema document: schema_writer.cc what holds of all types and scalars,
/// schema_arrays.cc and schema_objects.cc the others. See read_schema(). Thread: one.
class SchemaWriter {
 public:
  /// All must outlive the writer.
  SchemaWriter(RuleSet& rules, JsonParts& parts, const boost::json::value& root)
      : reader_(root), rules_(rules), parts_(parts), root_(&root) {}

  /// The rule of the document's values of these types.
  core::Result<RuleId> write(unsigned types);

 private:
  using Schemas = SchemaParts::Schemas;

  /// The rule of a schema that others refer to; written later, so that references may go round.
  RuleId rule_of(const boost::json::value& schema);
  /// A value that satisfies all the schemas.
  core::Result<ExprId> write_all(const Schemas& schemas, int depth);
  /// The same as a call, for values that stand in several places.
  core::Result<ExprId> write_shared(const Schemas& schemas, int depth);
  core::Result<ExprId> shared(core::Result<ExprId> expr);
  core::Result<ExprId> write_parts(const SchemaParts& parts, int depth);
  core::Result<ExprId> write_branches(const SchemaParts& parts, int depth);
  core::Result<ExprId> write_values(const SchemaParts& parts);
  ExprId write_constant(const boost::json::value& value);
  core::Result<ExprId> write_number(const SchemaParts& parts);
  core::Result<ExprId> write_string(const SchemaParts& parts);

  core::Result<ExprId> write_array(const SchemaParts& parts, int depth);
  core::Result<ExprId> write_containing_array(const SchemaParts& parts, int depth);
  core::Result<ExprId> write_unique_array(const SchemaParts& parts);
  ExprId element_at(int index, ExprId element);
  ExprId list_of(const std::vector<ExprId>& first, ExprId rest, int min, int max);

  struct Pair {
    ExprId expr = 0;
    bool is_required = false;
  };
  core::Result<ExprId> write_object(const SchemaParts& parts, int depth);
  core::Result<std::optional<ExprId>> write_other_pair(const SchemaParts& parts,
                                                       const SchemaParts& key,
                                                       const std::vector<std::string>& names,
                                                       int depth);
  core::Result<ExprId> write_other_key(SchemaParts key, const std::vector<std::string>& names,
                                       int depth);
  core::Result<ExprId> write_pairs(const SchemaParts& parts, const std::vector<Pair>& pairs,
                                   std::optional<ExprId> other);

  SchemaReader reader_;
  RuleSet& rules_;
  JsonParts& parts_;
  const boost::json::value* root_;
  std::map<const boost::json::value*, RuleId> known_;
  std::vector<std::pair<const boost::json::value*, RuleId>> todo_;
};

/// What a schema asks for is refused.
core::Status refused(std::string_view what);
/// A count that a repetition can have; kUnbounded where there is none.
int count(double n);
int count(const std::optional<double>& n);

}  // namespace tandem::grammar
