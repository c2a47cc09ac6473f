// What it takes for a value not to satisfy a schema: one of its keywords is not kept. A keyword's
// complement is said by other keywords, mostly, so that all else reads it like any schema.

#include <algorithm>
#include <array>

#include "tandem/grammar/schema_reader.h"
#include "tandem/grammar/string_formats.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

/// Keywords that say something only together with another one of the schema.
struct Companion {
  std::string_view key, of;
};
constexpr std::array<Companion, 5> kCompanions = {{{"then", "if"},
                                                   {"else", "if"},
                                                   {"minContains", "contains"},
                                                   {"maxContains", "contains"},
                                                   {"additionalItems", "items"}}};
/// Keywords that bound a number or a count, and what says that a value is beyond the bound.
struct Bound {
  std::string_view key, type, opposite;
  int step;  // of a count; 0: no count
};
constexpr std::array<Bound, 10> kBounds = {{{"minimum", "number", "exclusiveMaximum", 0},
                                            {"maximum", "number", "exclusiveMinimum", 0},
                                            {"exclusiveMinimum", "number", "maximum", 0},
                                            {"exclusiveMaximum", "number", "minimum", 0},
                                            {"minLength", "string", "maxLength", -1},
                                            {"maxLength", "string", "minLength", 1},
                                            {"minItems", "array", "maxItems", -1},
                                            {"maxItems", "array", "minItems", 1},
                                            {"minProperties", "object", "maxProperties", -1},
                                            {"maxProperties", "object", "minProperties", 1}}};
/// The others that restrict values, of those that SchemaReader::add() does not refuse.
constexpr std::string_view kRestricting[] = {"type",
                                             "enum",
                                             "const",
                                             "multipleOf",
                                             "required",
                                             "properties",
                                             "patternProperties",
                                             "additionalProperties",
                                             "propertyNames",
                                             "items",
                                             "prefixItems",
                                             "contains",
                                             "uniqueItems",
                                             "pattern",
                                             "$ref",
                                             "not",
                                             "allOf",
                                             "anyOf",
                                             "oneOf",
                                             "if",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies"};

/// Null: the keyword is no bound.
const Bound* bound_of(std::string_view key) {
  const auto* bound = std::ranges::find(kBounds, key, &Bound::key);
  return bound == kBounds.end() ? nullptr : bound;
}

/// Keywords of a schema that values may fail to keep.
std::vector<std::string_view> restricting_keys(const json::object& schema) {
  std::vector<std::string_view> keys;
  for (const auto& member : schema) {
    const std::string_view key = member.key();
    const json::string* text = member.value().if_string();
    const bool is_format = key == "format" && text != nullptr && !pattern_of_format(*text).empty();
    const bool says_nothing =
        (key == "uniqueItems" && member.value() == json::value(false)) ||
        (key == "additionalProperties" && member.value() == json::value(true));
    if (says_nothing) continue;
    const bool is_restricting =
        bound_of(key) != nullptr || std::ranges::count(kRestricting, key) > 0;
    if (is_format || is_restricting) keys.push_back(key);
  }
  return keys;
}

/// The keyword with its companions alone.
json::object only(const json::object& schema, std::string_view key) {
  json::object out;
  out[key] = schema.at(key);
  for (const Companion& companion : kCompanions) {
    const json::value* value = schema.if_contains(companion.key);
    if (companion.of == key && value != nullptr) out[companion.key] = *value;
  }
  return out;
}

/// Not between bounds is beyond one of them: the keyword and value that say so, if there are any.
std::optional<json::value> beyond(std::string_view key, const json::value& value) {
  const Bound* bound = bound_of(key);
  if (bound == nullptr || !value.is_number()) return std::nullopt;
  json::object out = {{"type", bound->type}, {bound->opposite, value}};
  if (bound->step == 0) return out;
  const double count = value.to_number<double>() + bound->step;
  if (count < 0) return false;
  out[bound->opposite] = count;
  return out;
}

json::object negated(const json::value& schema) {
  return {{"not", schema}};
}

}  // namespace

core::Status SchemaReader::add_denied(const json::value& schema, SchemaParts& parts, int depth) {
  TANDEM_TRY(spend());
  if (depth > kMaxDepth) return too_deep();
  const json::object* object = schema.if_object();
  SchemaParts denied;
  TANDEM_TRY(add(schema, denied, depth + 1));  // checks it, too
  const std::vector<std::string_view> keys =
      object == nullptr ? std::vector<std::string_view>() : restricting_keys(*object);
  if (keys.empty()) {
    if (denied.types != 0) parts.types = 0;
    return {};
  }
  SchemaParts::Choice ways;
  if (keys.size() > 1) {
    for (const std::string_view key : keys) {
      TANDEM_ASSIGN(const json::value* part, own(only(*object, key)));
      ways.branches.push_back({{part, true}});
    }
  } else if (keys[0] == "type") {
    parts.types &= ~denied.types;
    return {};
  } else if (keys[0] == "enum" || keys[0] == "const") {
    parts.excluded.insert(parts.excluded.end(), denied.values->begin(), denied.values->end());
    return {};
  } else if (keys[0] == "pattern" || keys[0] == "format") {
    parts.types &= kStringType;
    parts.patterns.push_back(denied.patterns[0]);
    parts.patterns.back().is_denied = true;
    return {};
  } else if (keys[0] == "multipleOf") {
    parts.types &= kIntegerType | kFractionType;
    parts.numbers.non_steps.push_back(denied.numbers.steps[0]);
    return {};
  } else {
    TANDEM_ASSIGN(ways.branches, denials(*object, keys[0]));
  }
  if (ways.branches.size() != 1) {
    parts.choices.push_back(std::move(ways));
    return {};
  }
  for (const Claim& claim : ways.branches[0]) TANDEM_TRY(add(claim, parts, depth + 1));
  return {};
}

core::Result<std::vector<Claims>> SchemaReader::denials(const json::object& schema,
                                                        std::string_view key) {
  const json::value& value = schema.at(key);
  if (const auto bound = beyond(key, value)) {
    TANDEM_ASSIGN(const json::value* made, own(*bound));
    return std::vector<Claims>{{{made, false}}};
  }
  if (key == "not") return std::vector<Claims>{{{&value, false}}};
  if (key == "$ref") {
    TANDEM_ASSIGN(const json::value* target, resolve(value.get_string()));
    return std::vector<Claims>{{{target, true}}};
  }
  if (key == "allOf" || key == "anyOf" || key == "oneOf") return denials_of_list(key, value);
  if (key == "if") {
    const json::value* on_true = schema.if_contains("then");
    const json::value* on_false = schema.if_contains("else");
    std::vector<Claims> ways;
    if (on_true != nullptr) ways.push_back({{&value, false}, {on_true, true}});
    if (on_false != nullptr) ways.push_back({{&value, true}, {on_false, true}});
    return ways;
  }
  if (key == "contains") return denials_of_contains(schema, value);
  return denials_of_members(key, value);
}

core::Result<std::vector<Claims>> SchemaReader::denials_of_list(std::string_view key,
                                                                const json::value& value) {
  std::vector<Claims> ways;
  const json::array& list = value.get_array();
  if (key == "allOf") {
    for (const json::value& schema : list) ways.push_back({{&schema, true}});
    return ways;
  }
  Claims none;
  for (const json::value& schema : list) none.push_back({&schema, true});
  ways.push_back(none);
  if (key == "anyOf") return ways;
  for (std::size_t i = 0; i < list.size(); ++i) {  // of a oneOf, two may hold
    for (std::size_t j = 0; j < i; ++j) {
      TANDEM_TRY(spend());
      ways.push_back({{&list[i], false}, {&list[j], false}});
    }
  }
  return ways;
}

core::Result<std::vector<Claims>> SchemaReader::denials_of_contains(const json::object& schema,
                                                                    const json::value& value) {
  SchemaParts parts;
  TANDEM_TRY(add(schema, parts));
  if (parts.contains.empty()) return std::vector<Claims>();  // of none at least: always so
  const SchemaParts::Contains& contains = parts.contains[0];
  std::vector<Claims> ways;
  if (contains.min > 0) {
    TANDEM_ASSIGN(const json::value* fewer, own({{"type", "array"},
                                                 {"contains", value},
                                                 {"minContains", 0},
                                                 {"maxContains", contains.min - 1}}));
    ways.push_back({{fewer, false}});
  }
  if (contains.max) {
    TANDEM_ASSIGN(
        const json::value* more,
        own({{"type", "array"}, {"contains", value}, {"minContains", *contains.max + 1}}));
    ways.push_back({{more, false}});
  }
  return ways;
}

core::Result<std::vector<Claims>> SchemaReader::denials_of_members(std::string_view key,
                                                                   const json::value& value) {
  std::vector<Claims> ways;
  const auto add_way = [&](json::object way, std::string_view type) -> core::Status {
    way["type"] = type;
    TANDEM_ASSIGN(const json::value* made, own(std::move(way)));
    ways.push_back({{made, false}});
    return {};
  };
  if (key == "required") {
    for (const json::value& name : value.get_array()) {
      TANDEM_TRY(add_way({{"properties", json::object{{name.get_string(), false}}}}, "object"));
    }
  } else if (key == "properties") {
    for (const auto& [name, schema] : value.get_object()) {
      TANDEM_TRY(add_way(
          {{"required", json::array{name}}, {"properties", json::object{{name, negated(schema)}}}},
          "object"));
    }
  } else if (key == "dependentRequired") {
    for (const auto& [name, others] : value.get_object()) {
      for (const json::value& other : others.get_array()) {
        TANDEM_TRY(add_way({{"required", json::array{name}},
                            {"properties", json::object{{other.as_string(), false}}}},
                           "object"));
      }
    }
  } else if (key == "dependentSchemas") {
    for (const auto& [name, schema] : value.get_object()) {
      TANDEM_TRY(add_way({{"required", json::array{name}}, {"not", schema}}, "object"));
    }
  } else if (key == "items" && !value.is_array()) {
    TANDEM_TRY(add_way({{"contains", negated(value)}}, "array"));
  } else {
    return unsupported(key, " where it must not hold (in not, if or a oneOf)");
  }
  return ways;
}

}  // namespace tandem::grammar
