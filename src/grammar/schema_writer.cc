#include "tandem/grammar/schema_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "tandem/grammar/regex.h"
#include "tandem/grammar/schema_disjoint.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxNesting = 200;
constexpr int kMaxExprs = 400'000;
constexpr double kMaxCount = 1e9;  // as good as no bound
constexpr double kMaxMinLength = 100'000;

}  // namespace

core::Status refused(std::string_view what) {
  return core::invalid_argument(
      fmt::format("the schema asks for {}, which cannot be kept while generating", what));
}

int count(double n) {
  return static_cast<int>(std::min(n, kMaxCount));
}
int count(const std::optional<double>& n) {
  return n ? count(*n) : kUnbounded;
}

core::Result<RuleId> SchemaWriter::write(unsigned types) {
  SchemaParts whole;
  whole.types = types;
  TANDEM_TRY(reader_.add(*root_, whole));
  if (whole.allows_nothing()) return core::invalid_argument("the schema allows no value at all");
  TANDEM_ASSIGN(const ExprId expr, write_parts(whole, 0));
  const RuleId root = rules_.add_rule("root", expr);
  for (std::size_t i = 0; i < todo_.size(); ++i) {
    const auto [schema, rule] = todo_[i];
    TANDEM_ASSIGN(const SchemaParts parts, reader_.parts_of({schema}));
    TANDEM_ASSIGN(const ExprId definition, write_parts(parts, 0));
    rules_.define(rule, definition);
  }
  return root;
}

RuleId SchemaWriter::rule_of(const json::value& schema) {
  const auto it = known_.find(&schema);
  if (it != known_.end()) return it->second;
  const RuleId rule = rules_.declare("schema");
  known_.emplace(&schema, rule);
  todo_.emplace_back(&schema, rule);
  return rule;
}

core::Result<ExprId> SchemaWriter::write_all(const Schemas& schemas, int depth) {
  if (schemas.size() == 1) {
    const std::string_view reference = SchemaReader::only_reference(*schemas[0]);
    if (!reference.empty()) {
      TANDEM_TRY(reader_.spend());
      TANDEM_ASSIGN(const json::value* target, reader_.resolve(reference));
      return rules_.rule(rule_of(*target));
    }
  }
  TANDEM_ASSIGN(const SchemaParts parts, reader_.parts_of(schemas));
  return write_parts(parts, depth);
}

core::Result<ExprId> SchemaWriter::write_shared(const Schemas& schemas, int depth) {
  return shared(write_all(schemas, depth));
}

core::Result<ExprId> SchemaWriter::shared(core::Result<ExprId> expr) {
  if (!expr.ok() || rules_.expr(*expr).kind == RuleSet::Kind::kRule) return expr;
  return rules_.rule(rules_.add_rule("part", *expr));
}

core::Result<ExprId> SchemaWriter::write_parts(const SchemaParts& parts, int depth) {
  if (depth > kMaxNesting || rules_.num_exprs() > kMaxExprs) {
    return core::invalid_argument("the schema is too large or nested too deep");
  }
  if (parts.allows_nothing()) return rules_.nothing();
  if (parts.values) return write_values(parts);
  if (!parts.choices.empty()) return write_branches(parts, depth);
  if (parts.says_nothing()) return parts_.value();
  constexpr unsigned kNested = kArrayType | kObjectType;
  for (const json::value& value : parts.excluded) {
    if ((type_of(value) & parts.types & kNested) != 0) return refused("not of arrays or objects");
  }
  std::vector<ExprId> ways;
  if ((parts.types & kObjectType) != 0) {
    TANDEM_ASSIGN(const ExprId object, write_object(parts, depth));
    ways.push_back(object);
  }
  if ((parts.types & kArrayType) != 0) {
    TANDEM_ASSIGN(const ExprId array, write_array(parts, depth));
    ways.push_back(array);
  }
  if ((parts.types & kStringType) != 0) {
    TANDEM_ASSIGN(const ExprId string, write_string(parts));
    ways.push_back(string);
  }
  if ((parts.types & (kIntegerType | kFractionType)) != 0) {
    TANDEM_ASSIGN(const ExprId number, write_number(parts));
    ways.push_back(number);
  }
  for (const json::value& value : {json::value(true), json::value(false), json::value()}) {
    const bool is_allowed = (parts.types & type_of(value)) != 0 && !parts.excludes(value);
    if (is_allowed) ways.push_back(rules_.literal(to_json(value)));
  }
  return rules_.choice(ways);
}

core::Result<ExprId> SchemaWriter::write_branches(const SchemaParts& parts, int depth) {
  TANDEM_ASSIGN(const auto branches, exclusive_branches(reader_, parts));
  std::vector<ExprId> ways;
  for (const SchemaReader::Branch& branch : branches) {
    // A branch alone may be a reference.
    TANDEM_ASSIGN(const ExprId way, branch.alone != nullptr ? write_all({branch.alone}, depth + 1)
                                                            : write_parts(branch.parts, depth + 1));
    ways.push_back(way);
  }
  return rules_.choice(ways);
}

core::Result<ExprId> SchemaWriter::write_values(const SchemaParts& parts) {
  SchemaParts rest = parts;
  rest.values = std::nullopt;
  const bool says_nothing = rest.says_nothing();
  std::vector<ExprId> ways;
  for (const json::value& value : *parts.values) {
    TANDEM_ASSIGN(const bool is_allowed,
                  says_nothing ? core::Result<bool>(true) : reader_.allows(rest, value));
    if (is_allowed) ways.push_back(write_constant(value));
  }
  return rules_.choice(ways);
}

ExprId SchemaWriter::write_constant(const json::value& value) {
  if (!parts_.is_call()) return rules_.literal(to_json(value));
  if (const json::string* text = value.if_string()) {
    return parts_.string_of(*text);
  }
  std::vector<ExprId> sequence;
  const auto add = [&](std::string_view separator, ExprId item) {
    if (!sequence.empty()) sequence.push_back(rules_.literal(separator));
    sequence.push_back(item);
  };
  if (const json::array* array = value.if_array()) {
    for (const json::value& element : *array) add(",", write_constant(element));
    return rules_.sequence({rules_.literal("["), rules_.sequence(sequence), rules_.literal("]")});
  }
  if (const json::object* object = value.if_object()) {
    for (const auto& [name, member] : *object) {
      add(",", parts_.pair(parts_.key(name), write_constant(member)));
    }
    return rules_.sequence({rules_.literal("{"), rules_.sequence(sequence), rules_.literal("}")});
  }
  return rules_.literal(to_json(value));
}

core::Result<ExprId> SchemaWriter::write_number(const SchemaParts& parts) {
  NumberSet numbers = parts.numbers;
  for (const json::value& value : parts.excluded) {
    const auto hole = value.is_number() ? Decimal::of(value) : std::nullopt;
    if (hole) numbers.holes.push_back(*hole);
  }
  const bool may_be_whole = (parts.types & kIntegerType) != 0;
  const bool may_have_fraction = (parts.types & kFractionType) != 0;
  if (!may_be_whole) numbers.non_steps.push_back({});
  if (numbers.says_nothing()) return may_have_fraction ? parts_.number() : parts_.integer();
  const auto written = write_numbers(rules_, numbers, may_have_fraction);
  if (!written) return refused("so many excluded numbers, or remainders of multipleOf, at once");
  return *written;
}

core::Result<ExprId> SchemaWriter::write_string(const SchemaParts& parts) {
  TextSet texts;
  for (const json::value& value : parts.excluded) {
    if (const json::string* text = value.if_string()) texts.holes.emplace_back(*text);
  }
  if (parts.min_length > kMaxMinLength) return refused("a minLength above 100,000");
  texts.min_length = count(parts.min_length);
  texts.max_length = count(parts.max_length);
  texts.patterns = parts.patterns;
  const bool has_length = parts.min_length > 0 || parts.max_length;
  if (texts.patterns.empty() && texts.holes.empty()) {
    if (!has_length) return parts_.string();
    if (parts.max_length && *parts.max_length < parts.min_length) return rules_.nothing();
    return parts_.string(texts.min_length, texts.max_length);
  }
  const bool is_one_pattern = texts.patterns.size() == 1 && !texts.patterns[0].is_denied &&
                              texts.holes.empty() && !has_length;
  if (!is_one_pattern) return parts_.string(texts);
  TANDEM_ASSIGN(const ExprId body, read_regex(rules_, texts.patterns[0].regex,
                                              texts.patterns[0].is_whole, parts_.char_writer()));
  return parts_.quoted(body);
}

}  // namespace tandem::grammar
