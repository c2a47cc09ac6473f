#include "tandem/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/grammar/json_parts.h"
#include "tandem/grammar/regex.h"
#include "tandem/grammar/schema_disjoint.h"
#include "tandem/grammar/schema_parts.h"
#include "tandem/grammar/string_formats.h"

namespace tandem::grammar {
namespace {

constexpr ExprId kNoOther = -1;  // no pair of another key

namespace json = boost::json;

constexpr std::size_t kMaxSchemaDepth = 64;
constexpr int kMaxNesting = 200;
constexpr int kMaxExprs = 400'000;
constexpr int kMaxContainingItems = 32;
constexpr double kMaxCount = 100'000;  // more repetitions than any automaton may have

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

/// Writes the rules of a schema document.
class SchemaWriter {
 public:
  SchemaWriter(RuleSet& rules, JsonParts& parts, const json::value& root)
      : reader_(root), rules_(rules), parts_(parts), root_(&root) {}

  /// The rule of the document's values of these types.
  core::Result<RuleId> write(unsigned types) {
    SchemaParts whole;
    whole.types = types;
    TANDEM_TRY(reader_.add(*root_, whole));
    TANDEM_ASSIGN(const ExprId expr, write_parts(std::move(whole), 0));
    const RuleId root = rules_.add_rule("root", expr);
    for (std::size_t i = 0; i < todo_.size(); ++i) {
      const auto [schema, rule] = todo_[i];
      SchemaParts parts;
      TANDEM_TRY(reader_.add(*schema, parts));
      TANDEM_ASSIGN(const ExprId definition, write_parts(std::move(parts), 0));
      rules_.define(rule, definition);
    }
    return root;
  }

 private:
  using Schemas = SchemaParts::Schemas;

  /// The rule of a schema that others refer to; written later, so that references may go round.
  RuleId rule_of(const json::value& schema) {
    const auto it = known_.find(&schema);
    if (it != known_.end()) return it->second;
    const RuleId rule = rules_.declare("schema");
    known_.emplace(&schema, rule);
    todo_.emplace_back(&schema, rule);
    return rule;
  }

  /// A value that satisfies all the schemas.
  core::Result<ExprId> write_all(const Schemas& schemas, int depth) {
    if (schemas.size() == 1) {
      const std::string_view reference = SchemaReader::only_reference(*schemas[0]);
      if (!reference.empty()) {
        TANDEM_TRY(reader_.spend());
        TANDEM_ASSIGN(const json::value* target, reader_.resolve(reference));
        return rules_.rule(rule_of(*target));
      }
    }
    SchemaParts parts;
    for (const json::value* schema : schemas) TANDEM_TRY(reader_.add(*schema, parts));
    return write_parts(std::move(parts), depth);
  }

  /// The same as a call, for values that stand in several places.
  core::Result<ExprId> write_shared(const Schemas& schemas, int depth) {
    TANDEM_ASSIGN(const ExprId expr, write_all(schemas, depth));
    if (rules_.expr(expr).kind == RuleSet::Kind::kRule) return expr;
    return rules_.rule(rules_.add_rule("part", expr));
  }

  core::Result<ExprId> write_parts(SchemaParts parts, int depth) {
    if (depth > kMaxNesting || rules_.num_exprs() > kMaxExprs) {
      return core::invalid_argument("the schema is too large or nested too deep");
    }
    if (parts.allows_nothing()) return rules_.nothing();
    if (parts.alternatives != nullptr) return write_alternatives(std::move(parts), depth);
    if (parts.values) return write_values(parts);
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

  core::Result<ExprId> write_values(const SchemaParts& parts) {
    if (parts.says_more()) {
      return refused("enum or const together with other keywords than type");
    }
    std::vector<ExprId> ways;
    for (const json::value& value : *parts.values) {
      const bool is_allowed = (type_of(value) & parts.types) != 0 && !parts.excludes(value);
      if (is_allowed) ways.push_back(write_constant(value));
    }
    return rules_.choice(ways);
  }

  ExprId write_constant(const json::value& value) {
    if (!parts_.is_call()) return rules_.literal(to_json(value));
    if (const json::string* text = value.if_string()) {
      return parts_.string_of({text->data(), text->size()});
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
        add(",", parts_.pair(parts_.key({name.data(), name.size()}), write_constant(member)));
      }
      return rules_.sequence({rules_.literal("{"), rules_.sequence(sequence), rules_.literal("}")});
    }
    return rules_.literal(to_json(value));
  }

  core::Result<ExprId> write_alternatives(SchemaParts parts, int depth) {
    const json::array& list = *std::exchange(parts.alternatives, nullptr);
    const bool is_one_of = parts.is_one_of;
    std::vector<SchemaParts> branches;
    std::vector<ExprId> ways;
    const bool says_nothing = parts.says_nothing();
    for (const json::value& schema : list) {
      SchemaParts branch = parts;
      TANDEM_TRY(reader_.add(schema, branch));
      branches.push_back(branch);
      if (says_nothing) {  // the branch alone, which may be a reference
        TANDEM_ASSIGN(const ExprId way, write_all({&schema}, depth + 1));
        ways.push_back(way);
      } else {
        TANDEM_ASSIGN(const ExprId way, write_parts(std::move(branch), depth + 1));
        ways.push_back(way);
      }
    }
    for (std::size_t i = 0; is_one_of && i < branches.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        TANDEM_ASSIGN(const bool is_disjoint, are_disjoint(reader_, branches[i], branches[j]));
        if (!is_disjoint) return refused("oneOf with branches that may overlap (try anyOf)");
      }
    }
    return rules_.choice(ways);
  }

  // ---- scalars ---------------------------------------------------------------------------------

  core::Result<ExprId> write_number(const SchemaParts& parts) {
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
    if (!written) return refused("multiples of such numbers together (too many remainders)");
    return *written;
  }

  core::Result<ExprId> write_string(const SchemaParts& parts) {
    const bool has_length = parts.min_length > 0 || parts.max_length;
    std::vector<std::string_view> format_patterns;
    for (const std::string& name : parts.formats) {
      const std::string_view pattern = pattern_of_format(name);
      if (!pattern.empty()) format_patterns.push_back(pattern);
    }
    const std::size_t num_patterns = parts.patterns.size() + format_patterns.size();
    std::vector<std::string> excluded;
    for (const json::value& value : parts.excluded) {
      if (const json::string* text = value.if_string()) excluded.emplace_back(*text);
    }
    if (!excluded.empty()) {
      if (num_patterns > 0 || has_length || parts_.is_call()) {
        return refused("not of some strings beside other keywords, or in a call");
      }
      return parts_.key_other_than(excluded);
    }
    if (num_patterns > 1 || (num_patterns > 0 && has_length)) {
      return refused("several of pattern, format, minLength and maxLength of one string");
    }
    if (num_patterns == 0) {
      if (!has_length) return parts_.string();
      if (parts.max_length && *parts.max_length < parts.min_length) return rules_.nothing();
      return parts_.string(count(parts.min_length), count(parts.max_length));
    }
    const bool is_format = !format_patterns.empty();
    TANDEM_ASSIGN(const ExprId body,
                  read_regex(rules_, is_format ? format_patterns[0] : parts.patterns[0], is_format,
                             parts_.char_writer()));
    return parts_.quoted(body);
  }

  // ---- arrays ----------------------------------------------------------------------------------

  core::Result<ExprId> write_array(const SchemaParts& parts, int depth) {
    const double min = parts.min_items;
    if (!parts.contains.empty()) return write_containing_array(parts, depth);
    if (parts.elements.empty() && min == 0 && !parts.max_items) return parts_.array();
    std::vector<ExprId> first;
    const std::size_t num_first = parts.num_first_elements();
    for (std::size_t i = 0; i < num_first; ++i) {
      TANDEM_ASSIGN(const ExprId element, write_all(parts.element_schemas(i), depth + 1));
      first.push_back(element);
    }
    TANDEM_ASSIGN(const ExprId rest, write_shared(parts.element_schemas(num_first), depth + 1));
    const int max = count(parts.max_items);
    if (max != kUnbounded && max < count(min)) return rules_.nothing();
    if (max == 0)
      return rules_.sequence({rules_.literal("["), parts_.space(), rules_.literal("]")});
    return parts_.brackets(list_of(first, rest, std::max(count(min), 1), max), min == 0);
  }

  /// An array one of whose elements at least satisfies parts.contains, too: element by element,
  /// with such a one seen or not, as far as their schemas or counts differ.
  core::Result<ExprId> write_containing_array(const SchemaParts& parts, int depth) {
    if (parts.contains.size() > 1) return refused("several contains of one array");
    const int min = std::max(count(parts.min_items), 1), max = count(parts.max_items);
    if (max != kUnbounded && max < min) return rules_.nothing();
    const auto first = static_cast<int>(parts.num_first_elements());
    const int chain = max == kUnbounded ? std::max(first, min) : max;
    if (chain > kMaxContainingItems) {
      return refused("contains with more than 32 minItems, maxItems or prefixItems");
    }
    const auto next = [&](int i, ExprId element, ExprId after) {
      if (i == 0) return rules_.sequence({element, after});
      return rules_.sequence({parts_.comma(), element, after});
    };
    ExprId seen = rules_.empty(), unseen = rules_.nothing();
    for (int i = chain; i >= 0; --i) {
      if (i == chain && max != kUnbounded) continue;
      Schemas schemas = parts.element_schemas(static_cast<std::size_t>(i));
      TANDEM_ASSIGN(const ExprId any, write_shared(schemas, depth + 1));
      schemas.push_back(parts.contains[0]);
      TANDEM_ASSIGN(const ExprId wanted, write_shared(schemas, depth + 1));
      if (i == chain) {
        const ExprId others = rules_.repeat(next(i, any, rules_.empty()), 0);
        seen = others;
        unseen = rules_.sequence({others, next(i, wanted, seen)});
      } else {
        unseen = rules_.choice({next(i, wanted, seen), next(i, any, unseen)});
        seen = next(i, any, seen);
        if (i >= min) seen = rules_.optional(seen);
      }
    }
    return parts_.brackets(unseen, false);
  }

  /// At least min (1 or more) and at most max elements: the first ones, then `rest`.
  ExprId list_of(const std::vector<ExprId>& first, ExprId rest, int min, int max) {
    const int num_first = static_cast<int>(first.size());
    if (num_first == 0) return parts_.comma_list(rest, min, max);
    const auto more = [&](ExprId element) {
      return rules_.sequence({parts_.comma(), element});
    };
    ExprId tail = rules_.empty();
    if (max == kUnbounded || max > num_first) {
      tail = rules_.repeat(more(rest), std::max(0, min - num_first),
                           max == kUnbounded ? kUnbounded : max - num_first);
    }
    for (int i = num_first - 1; i > 0; --i) {
      if (max != kUnbounded && i >= max) continue;
      tail = rules_.sequence({more(first[static_cast<std::size_t>(i)]), tail});
      if (i >= min) tail = rules_.optional(tail);
    }
    return rules_.sequence({first[0], tail});
  }

  // ---- objects ---------------------------------------------------------------------------------

  struct Pair {
    ExprId expr = 0;
    bool is_required = false;
  };

  core::Result<ExprId> write_object(const SchemaParts& parts, int depth) {
    const std::vector<std::string> names = parts.names();
    if (names.empty() && parts.keys.empty() && parts.property_names.empty() &&
        parts.min_properties == 0 && !parts.max_properties) {
      return parts_.object();
    }
    if (!parts.property_names.empty() && !names.empty()) {
      return refused("propertyNames beside properties");
    }
    // Every pair stands once where a required one leads; else once before each other.
    const bool is_anchored = !parts.required.empty();
    std::vector<Pair> pairs;
    for (const std::string& name : names) {
      const Schemas schemas = parts.schemas_of(name);
      TANDEM_ASSIGN(const ExprId value,
                    is_anchored ? write_all(schemas, depth + 1) : write_shared(schemas, depth + 1));
      const bool is_required =
          std::find(parts.required.begin(), parts.required.end(), name) != parts.required.end();
      pairs.push_back({parts_.pair(parts_.key(name), value), is_required});
    }
    TANDEM_ASSIGN(const ExprId other, write_other_pair(parts, names, depth));
    return write_pairs(parts, pairs, other);
  }

  /// A pair of a key that has no name in the schema; kNoOther where there may be none.
  core::Result<ExprId> write_other_pair(const SchemaParts& parts,
                                        const std::vector<std::string>& names, int depth) {
    Schemas schemas;
    bool is_open = names.empty();
    const json::object* patterns = nullptr;
    for (const SchemaParts::Keys& keys : parts.keys) {
      if (keys.additional != nullptr) {
        is_open = true;
        schemas.push_back(keys.additional);
      }
      if (keys.pattern_properties != nullptr) patterns = keys.pattern_properties->if_object();
    }
    if (patterns != nullptr) return write_pattern_pair(parts, *patterns, names, depth);
    if (!is_open) return kNoOther;
    SchemaParts value_parts;
    for (const json::value* schema : schemas) TANDEM_TRY(reader_.add(*schema, value_parts));
    if (value_parts.allows_nothing()) return kNoOther;
    TANDEM_ASSIGN(const ExprId value, write_shared(schemas, depth + 1));
    ExprId key = names.empty() ? parts_.any_key() : parts_.key_other_than(names);
    if (!parts.property_names.empty()) {
      SchemaParts key_parts;
      for (const json::value* s : parts.property_names) TANDEM_TRY(reader_.add(*s, key_parts));
      key_parts.types &= kStringType;
      TANDEM_ASSIGN(key, write_parts(std::move(key_parts), depth + 1));
    }
    return parts_.pair(key, value);
  }

  core::Result<ExprId> write_pattern_pair(const SchemaParts& parts, const json::object& patterns,
                                          const std::vector<std::string>& names, int depth) {
    if (patterns.size() != 1 || parts.keys.size() != 1 || !names.empty() ||
        !parts.property_names.empty()) {
      return refused("patternProperties beside other keywords for keys, or of several patterns");
    }
    const auto& [pattern, schema] = *patterns.begin();
    TANDEM_ASSIGN(const ExprId value, write_shared({&schema}, depth + 1));
    TANDEM_ASSIGN(const ExprId key,
                  read_regex(rules_, std::string_view(pattern.data(), pattern.size()), false,
                             parts_.char_writer()));
    return parts_.pair(parts_.quoted(key), value);
  }

  core::Result<ExprId> write_pairs(const SchemaParts& parts, const std::vector<Pair>& pairs,
                                   ExprId other) {
    const double num_required = static_cast<double>(parts.required.size());
    const double num_named = static_cast<double>(pairs.size());
    if (parts.min_properties > std::max(num_required, 1.0)) {
      return refused("more minProperties than required keys");  // the same key might come twice
    }
    int max_other = kUnbounded;
    if (parts.max_properties) {
      if (*parts.max_properties < num_required) return rules_.nothing();
      if (*parts.max_properties < num_named) return refused("fewer maxProperties than properties");
      max_other = count(*parts.max_properties - num_named);
    }
    if (max_other == 0) other = kNoOther;
    const bool may_be_empty = num_required == 0 && parts.min_properties == 0;
    std::vector<ExprId> bodies;
    const auto first_required =
        std::find_if(pairs.begin(), pairs.end(), [](const Pair& p) { return p.is_required; });
    if (first_required != pairs.end()) {
      const auto lead = static_cast<std::size_t>(first_required - pairs.begin());
      bodies.push_back(pairs_from(pairs, lead, other, max_other));
    } else {
      for (auto it = pairs.begin(); it != pairs.end(); ++it) {
        bodies.push_back(pairs_from({it, pairs.end()}, 0, other, max_other));
      }
      if (other != kNoOther) bodies.push_back(parts_.comma_list(other, 1, max_other));
    }
    if (bodies.empty() && may_be_empty) {
      return rules_.sequence({rules_.literal("{"), parts_.space(), rules_.literal("}")});
    }
    return parts_.braces(rules_.choice(bodies), may_be_empty);
  }

  /// Pairs in order, of which `lead` is there: those before it may come with a comma behind, those
  /// after it with one before.
  ExprId pairs_from(const std::vector<Pair>& pairs, std::size_t lead, ExprId other, int max_other) {
    std::vector<ExprId> sequence;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i < lead) {
        sequence.push_back(rules_.optional(rules_.sequence({pairs[i].expr, parts_.comma()})));
      } else if (i == lead) {
        sequence.push_back(pairs[i].expr);
      } else {
        const ExprId more = rules_.sequence({parts_.comma(), pairs[i].expr});
        sequence.push_back(pairs[i].is_required ? more : rules_.optional(more));
      }
    }
    if (other != kNoOther) {
      sequence.push_back(rules_.repeat(rules_.sequence({parts_.comma(), other}), 0, max_other));
    }
    return rules_.sequence(sequence);
  }

  SchemaReader reader_;
  RuleSet& rules_;
  JsonParts& parts_;
  const json::value* root_;
  std::map<const json::value*, RuleId> known_;
  std::vector<std::pair<const json::value*, RuleId>> todo_;
};

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
