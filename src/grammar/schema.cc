#include "tandem/grammar/schema.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>

#include "tandem/grammar/schema_writer.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxSchemaDepth = 64;

}  // namespace

core::Result<RuleId> add_schema(RuleSet& rules, JsonParts& parts, std::string_view schema,
                                bool objects_only) {
  json::parse_options options;
  options.max_depth = kMaxSchemaDepth;
  boost::system::error_code error;
  const json::value root = json::parse({schema.data(), schema.size()}, error, {}, options);
  if (error) {
    return core::invalid_argument(
        fmt::format("the schema is not JSON, or nested more than {} deep: {}", kMaxSchemaDepth,
                    error.message()));
  }
  return SchemaWriter(rules, parts, root).write(objects_only ? kObjectType : kAllTypes);
}

core::Result<RuleSet> read_schema(std::string_view schema) {
  RuleSet rules;
  JsonParts parts(rules);
  TANDEM_ASSIGN(const RuleId root, add_schema(rules, parts, schema, false));
  rules.set_root(root);
  return rules;
}

RuleSet json_object_rules() {
  RuleSet rules;
  JsonParts parts(rules);
  rules.set_root(rules.add_rule("root", parts.object()));
  return rules;
}

}  // namespace tandem::grammar
