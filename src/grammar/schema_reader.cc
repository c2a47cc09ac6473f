#include "tandem/grammar/schema_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "tandem/grammar/string_formats.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxSpent = 20'000;
/// Values that are copied, and compared, in the time of a look-up.
constexpr std::size_t kCopies = 16, kComparisons = 1024;

/// Keywords that restrict values in ways that these grammars do not express.
constexpr std::array<std::string_view, 6> kUnsupported = {
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
    "$recursiveRef",    "propertyDependencies",  "contentSchema"};

core::Result<const json::array*> list_at(std::string_view key, const json::value& value) {
  const json::array* list = value.if_array();
  if (list == nullptr || (list->empty() && key != "enum" && key != "allOf"))
    return malformed(key, "a list");
  return list;
}

core::Result<unsigned> type_named(const json::value& name) {
  constexpr std::array<std::pair<std::string_view, unsigned>, 7> kNames = {
      {{"null", kNullType},
       {"boolean", kBooleanType},
       {"integer", kIntegerType},
       {"number", kIntegerType | kFractionType},
       {"string", kStringType},
       {"array", kArrayType},
       {"object", kObjectType}}};
  if (name.is_string()) {
    for (const auto& [text, bits] : kNames) {
      if (name.get_string() == text) return bits;
    }
  }
  return malformed("type", "null, boolean, integer, number, string, array or object");
}

core::Status add_types(const json::value& value, SchemaParts& parts) {
  unsigned types = 0;
  if (const json::array* names = value.if_array()) {
    for (const json::value& name : *names) {
      TANDEM_ASSIGN(const unsigned type, type_named(name));
      types |= type;
    }
  } else {
    TANDEM_ASSIGN(types, type_named(value));
  }
  parts.types &= types;
  return {};
}

void add_values(std::vector<json::value> values, SchemaParts& parts) {
  if (parts.values) {
    std::erase_if(values, [&](const json::value& value) {
      return std::none_of(parts.values->begin(), parts.values->end(),
                          [&](const json::value& other) { return is_equal(value, other); });
    });
  }
  parts.values = std::move(values);
}

/// A count from 0, or a bound of one.
core::Result<double> count_of(std::string_view key, const json::value& value) {
  if (value.is_number()) {
    const double count = value.to_number<double>();
    if (count >= 0 && count == std::floor(count)) return count;
  }
  return malformed(key, "a whole number from 0");
}

void raise(double& min, double value) {
  min = std::max(min, value);
}
void lower(std::optional<double>& max, double value) {
  max = max ? std::min(*max, value) : value;
}

/// The counts of strings, arrays and objects; false: another keyword.
core::Result<bool> add_count(std::string_view key, const json::value& value, SchemaParts& parts) {
  const std::array<std::pair<std::string_view, double*>, 3> minima = {
      {{"minLength", &parts.min_length},
       {"minItems", &parts.min_items},
       {"minProperties", &parts.min_properties}}};
  const std::array<std::pair<std::string_view, std::optional<double>*>, 3> maxima = {
      {{"maxLength", &parts.max_length},
       {"maxItems", &parts.max_items},
       {"maxProperties", &parts.max_properties}}};
  for (const auto& [name, min] : minima) {
    if (key != name) continue;
    TANDEM_ASSIGN(const double count, count_of(key, value));
    raise(*min, count);
    return true;
  }
  for (const auto& [name, max] : maxima) {
    if (key != name) continue;
    TANDEM_ASSIGN(const double count, count_of(key, value));
    lower(*max, count);
    return true;
  }
  return false;
}

core::Result<Decimal> number_of(std::string_view key, const json::value& value) {
  const auto number = value.is_number() ? Decimal::of(value) : std::nullopt;
  if (!number) return malformed(key, "a finite number");
  return *number;
}

core::Status add_step(const json::value& value, SchemaParts& parts) {
  TANDEM_ASSIGN(const Decimal number, number_of("multipleOf", value));
  if (number.is_negative || number.is_zero()) return malformed("multipleOf", "above 0");
  const auto step = DecimalStep::of(number);
  if (!step) return unsupported("multipleOf", " of so many digits");
  parts.numbers.steps.push_back(*step);
  return {};
}

/// The bounds of numbers; false: another keyword.
core::Result<bool> add_bound(std::string_view key, const json::value& value, SchemaParts& parts) {
  const bool is_min = key == "minimum" || key == "exclusiveMinimum";
  const bool is_max = key == "maximum" || key == "exclusiveMaximum";
  if (!is_min && !is_max) return false;
  TANDEM_ASSIGN(const Decimal bound, number_of(key, value));
  const bool is_excluded = key.starts_with("exclusive");
  is_min ? parts.numbers.raise_min(bound, is_excluded)
         : parts.numbers.lower_max(bound, is_excluded);
  return true;
}

core::Status check_names(std::string_view key, const json::value& value) {
  const json::array* names = value.if_array();
  const bool are_names =
      names != nullptr &&
      std::all_of(names->begin(), names->end(), [](const auto& n) { return n.is_string(); });
  return are_names ? core::Status() : malformed(key, "a list of names");
}

core::Status add_required(const json::value& value, SchemaParts& parts) {
  TANDEM_TRY(check_names("required", value));
  for (const json::value& name : value.get_array()) {
    const std::string text(name.get_string());
    if (!parts.requires_key(text)) parts.required.push_back(text);
  }
  return {};
}

core::Status add_keys(const json::object& schema, SchemaParts& parts) {
  SchemaParts::Keys keys;
  if (const json::value* properties = schema.if_contains("properties")) {
    keys.properties = properties->if_object();
    if (keys.properties == nullptr) return malformed("properties", "an object");
  }
  keys.pattern_properties = schema.if_contains("patternProperties");
  if (keys.pattern_properties != nullptr && !keys.pattern_properties->is_object()) {
    return malformed("patternProperties", "an object");
  }
  keys.additional = schema.if_contains("additionalProperties");
  if (keys.properties != nullptr || keys.pattern_properties != nullptr ||
      keys.additional != nullptr) {
    parts.keys.push_back(keys);
  }
  return {};
}

core::Status add_elements(const json::object& schema, SchemaParts& parts) {
  SchemaParts::Elements elements;
  elements.rest = schema.if_contains("items");
  const json::value* first = schema.if_contains("prefixItems");
  if (first == nullptr && elements.rest != nullptr && elements.rest->is_array()) {  // until 2019
    first = elements.rest;
    elements.rest = schema.if_contains("additionalItems");
  }
  if (first != nullptr) {
    elements.first = first->if_array();
    if (elements.first == nullptr) return malformed("prefixItems", "a list of schemas");
  }
  if (elements.first != nullptr || elements.rest != nullptr) parts.elements.push_back(elements);
  return {};
}

core::Status add_contains(const json::object& schema, SchemaParts& parts) {
  SchemaParts::Contains contains;
  contains.schema = schema.if_contains("contains");
  if (const json::value* min = schema.if_contains("minContains")) {
    TANDEM_ASSIGN(contains.min, count_of("minContains", *min));
  }
  if (const json::value* max = schema.if_contains("maxContains")) {
    TANDEM_ASSIGN(contains.max, count_of("maxContains", *max));
  }
  if (contains.schema != nullptr && (contains.min > 0 || contains.max)) {
    parts.contains.push_back(contains);
  }
  return {};
}

/// One step of a JSON pointer, unescaped; false: malformed.
bool unescape(std::string_view token, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out += token[++i] == '0' ? '~' : '/';
    } else if (token[i] == '%' && i + 2 < token.size()) {
      int byte = 0;
      const char* end = token.data() + i + 3;
      if (std::from_chars(token.data() + i + 1, end, byte, 16).ptr != end) return false;
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += token[i];
    }
  }
  return true;
}

}  // namespace

core::Status malformed(std::string_view key, std::string_view wanted) {
  return core::invalid_argument(fmt::format("the schema's {} must be {}", key, wanted));
}

core::Status unsupported(std::string_view key, std::string_view why) {
  return core::invalid_argument(fmt::format(
      "the schema uses {}, which cannot be kept while generating{}; leave it out", key, why));
}

core::Status SchemaReader::too_deep() {
  return core::invalid_argument("the schema's references and lists of schemas are nested too deep");
}

core::Status SchemaReader::spend(std::size_t pieces) {
  spent_ += std::min(pieces, kMaxSpent + 1);
  if (spent_ <= kMaxSpent) return {};
  return core::invalid_argument("the schema is too large once its references are followed");
}

std::string_view SchemaReader::only_reference(const json::value& schema) {
  const json::object* object = schema.if_object();
  if (object == nullptr) return {};
  std::string_view reference;
  for (const auto& member : *object) {
    const std::string_view key = member.key();
    if (key == "$ref" && member.value().is_string()) {
      reference = member.value().get_string();
    } else if (key != "description" && key != "title" && key != "$defs" && key != "definitions") {
      return {};
    }
  }
  return reference;
}

core::Result<const json::value*> SchemaReader::resolve(std::string_view reference) const {
  const auto fail = [&](std::string_view what) {
    return core::invalid_argument(fmt::format("the schema's $ref \"{}\" {}", reference, what));
  };
  if (!reference.starts_with('#') || (reference.size() > 1 && reference[1] != '/')) {
    return fail("is not supported; use # or #/... in the same schema");
  }
  const json::value* at = root_;
  std::string name;
  for (std::size_t begin = 1; begin < reference.size();) {
    const std::size_t end = std::min(reference.find('/', begin + 1), reference.size());
    if (!unescape(reference.substr(begin + 1, end - begin - 1), name)) return fail("is malformed");
    if (const json::object* object = at->if_object()) {
      at = object->if_contains(name);
    } else if (const json::array* array = at->if_array()) {
      std::size_t index = array->size();
      std::from_chars(name.data(), name.data() + name.size(), index);
      at = index < array->size() ? &(*array)[index] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) return fail("names nothing");
    begin = end;
  }
  return at;
}

core::Result<const json::value*> SchemaReader::own(json::value schema) {
  TANDEM_TRY(spend_on(schema));
  made_.push_back(std::move(schema));
  return &made_.back();
}

core::Status SchemaReader::spend_on(const json::value& value) {
  TANDEM_TRY(spend());
  if (const json::array* array = value.if_array()) {
    for (const json::value& element : *array) TANDEM_TRY(spend_on(element));
  }
  if (const json::object* object = value.if_object()) {
    for (const auto& member : *object) TANDEM_TRY(spend_on(member.value()));
  }
  return {};
}

core::Result<SchemaParts> SchemaReader::parts_of(const SchemaParts::Schemas& schemas) {
  SchemaParts parts;
  for (const json::value* schema : schemas) TANDEM_TRY(add(*schema, parts));
  return parts;
}

core::Status SchemaReader::add(const json::value& schema, SchemaParts& parts, int depth) {
  TANDEM_TRY(spend());
  if (depth > kMaxDepth) return too_deep();
  if (schema.is_bool()) {
    if (!schema.get_bool()) parts.types = 0;
    return {};
  }
  const json::object* object = schema.if_object();
  if (object == nullptr) {
    return core::invalid_argument("a schema must be an object, true or false");
  }
  for (const auto& member : *object) {
    const std::string_view key = member.key();
    TANDEM_TRY(add_keyword(key, member.value(), parts, depth));
  }
  TANDEM_TRY(add_keys(*object, parts));
  TANDEM_TRY(add_elements(*object, parts));
  TANDEM_TRY(add_contains(*object, parts));
  add_condition(*object, parts);
  return {};
}

core::Status SchemaReader::add_keyword(std::string_view key, const json::value& value,
                                       SchemaParts& parts, int depth) {
  if (std::find(kUnsupported.begin(), kUnsupported.end(), key) != kUnsupported.end()) {
    return unsupported(key, "");
  }
  TANDEM_ASSIGN(const bool is_count, add_count(key, value, parts));
  if (is_count) return {};
  TANDEM_ASSIGN(const bool is_bound, add_bound(key, value, parts));
  if (is_bound) return {};
  if (key == "type") return add_types(value, parts);
  if (key == "required") return add_required(value, parts);
  if (key == "multipleOf") return add_step(value, parts);
  if (key == "const") {
    add_values({value}, parts);
  } else if (key == "enum") {
    TANDEM_ASSIGN(const json::array* list, list_at(key, value));
    if (parts.values) TANDEM_TRY(spend(parts.values->size() * list->size() / kComparisons));
    add_values({list->begin(), list->end()}, parts);
  } else if (key == "pattern" || key == "format") {
    if (!value.is_string()) return malformed(key, "a string");
    const bool is_format = key == "format";
    const std::string_view text = value.get_string();
    const std::string_view regex = is_format ? pattern_of_format(text) : text;
    // Other formats describe.
    const bool is_kept = !is_format || !regex.empty();
    if (is_kept) parts.patterns.push_back({std::string(regex), is_format, false});
  } else if (key == "uniqueItems") {
    if (!value.is_bool()) return malformed(key, "true or false");
    parts.are_items_unique |= value.get_bool();
  } else if (key == "propertyNames") {
    parts.property_names.push_back(&value);
  } else if (key == "$ref") {
    if (!value.is_string()) return malformed(key, "a string");
    TANDEM_ASSIGN(const json::value* target, resolve(value.get_string()));
    return add(*target, parts, depth + 1);
  } else if (key == "not") {
    return add_denied(value, parts, depth + 1);
  } else {
    return add_combination(key, value, parts, depth);
  }
  return {};
}

core::Status SchemaReader::add_combination(std::string_view key, const json::value& value,
                                           SchemaParts& parts, int depth) {
  if (key == "allOf") {
    TANDEM_ASSIGN(const json::array* list, list_at(key, value));
    for (const json::value& schema : *list) TANDEM_TRY(add(schema, parts, depth + 1));
  } else if (key == "anyOf" || key == "oneOf") {
    TANDEM_ASSIGN(const json::array* list, list_at(key, value));
    SchemaParts::Choice choice;
    for (const json::value& schema : *list) choice.branches.push_back({{&schema, false}});
    choice.is_one_of = key == "oneOf";
    parts.choices.push_back(std::move(choice));
  } else if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") {
    const json::object* dependencies = value.if_object();
    if (dependencies == nullptr) return malformed(key, "an object");
    for (const auto& member : *dependencies) {
      const json::value* demand = &member.value();
      if (key == "dependentRequired" || demand->is_array()) {
        TANDEM_TRY(check_names(key, *demand));
        TANDEM_ASSIGN(demand, own({{"required", *demand}}));
      }
      TANDEM_ASSIGN(const json::value* is_missing, own({{"properties", {{member.key(), false}}}}));
      parts.choices.push_back({{{{is_missing, false}}, {{demand, false}}}, false});
    }
  }
  return {};  // anything else describes, and restricts nothing
}

void SchemaReader::add_condition(const json::object& schema, SchemaParts& parts) {
  const json::value* condition = schema.if_contains("if");
  const json::value* on_true = schema.if_contains("then");
  const json::value* on_false = schema.if_contains("else");
  if (condition == nullptr || (on_true == nullptr && on_false == nullptr)) return;
  Claims is_true = {{condition, false}}, is_false = {{condition, true}};
  if (on_true != nullptr) is_true.push_back({on_true, false});
  if (on_false != nullptr) is_false.push_back({on_false, false});
  parts.choices.push_back({{is_true, is_false}, false});
}

core::Result<std::vector<SchemaReader::Branch>> SchemaReader::branches(const SchemaParts& parts) {
  SchemaParts rest = parts;
  const SchemaParts::Choice choice = std::move(rest.choices.back());
  rest.choices.pop_back();
  std::vector<Branch> out;
  const std::size_t size = rest.excluded.size() + rest.required.size() + rest.keys.size();
  for (const Claims& claims : choice.branches) {
    TANDEM_TRY(spend(1 + size / kCopies));
    Branch branch = {rest, nullptr};
    for (const Claim& claim : claims) TANDEM_TRY(add(claim, branch.parts));
    const bool is_alone = claims.size() == 1 && !claims[0].is_denied && rest.says_nothing();
    if (is_alone) branch.alone = claims[0].schema;
    out.push_back(std::move(branch));
  }
  return out;
}

}  // namespace tandem::grammar
