#include "tandem/grammar/schema_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "tandem/core/json_escape.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxSpent = 20'000;
constexpr int kMaxDepth = 64;

/// Keywords that restrict values in ways that these grammars do not express.
constexpr std::array<std::string_view, 13> kUnsupported = {"if",
                                                           "then",
                                                           "else",
                                                           "maxContains",
                                                           "dependencies",
                                                           "dependentRequired",
                                                           "dependentSchemas",
                                                           "unevaluatedItems",
                                                           "unevaluatedProperties",
                                                           "$dynamicRef",
                                                           "$recursiveRef",
                                                           "propertyDependencies",
                                                           "contentSchema"};

core::Status malformed(std::string_view key, std::string_view wanted) {
  return core::invalid_argument(fmt::format("the schema's {} must be {}", key, wanted));
}

core::Status unsupported(std::string_view key, std::string_view why) {
  return core::invalid_argument(fmt::format(
      "the schema uses {}, which cannot be kept while generating{}; leave it out", key, why));
}

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
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
      if (view(name.get_string()) == text) return bits;
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

core::Status add_required(const json::value& value, SchemaParts& parts) {
  const json::array* names = value.if_array();
  if (names == nullptr) return malformed("required", "a list of names");
  for (const json::value& name : *names) {
    if (!name.is_string()) return malformed("required", "a list of names");
    const std::string text(view(name.get_string()));
    if (std::find(parts.required.begin(), parts.required.end(), text) == parts.required.end()) {
      parts.required.push_back(text);
    }
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
  double min_contains = 1;
  if (const json::value* count = schema.if_contains("minContains")) {
    TANDEM_ASSIGN(min_contains, count_of("minContains", *count));
  }
  const json::value* contains = schema.if_contains("contains");
  if (contains == nullptr || min_contains == 0) return {};
  if (min_contains > 1) return unsupported("minContains", " but for 0 and 1");
  parts.contains.push_back(contains);
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

void append_json(const json::value& value, std::string& out) {
  switch (value.kind()) {
    case json::kind::string:
      out += '"';
      core::append_json_escaped(view(value.get_string()), out);
      out += '"';
      return;
    case json::kind::array: {
      const char* separator = "[";
      for (const json::value& element : value.get_array()) {
        out += std::exchange(separator, ",");
        append_json(element, out);
      }
      out += value.get_array().empty() ? "[]" : "]";
      return;
    }
    case json::kind::object: {
      const char* separator = "{";
      for (const auto& member : value.get_object()) {
        out += std::exchange(separator, ",");
        out += '"';
        core::append_json_escaped(std::string_view(member.key().data(), member.key().size()), out);
        out += "\":";
        append_json(member.value(), out);
      }
      out += value.get_object().empty() ? "{}" : "}";
      return;
    }
    case json::kind::double_:
      fmt::format_to(std::back_inserter(out), "{}", value.get_double());
      return;
    case json::kind::int64:
      fmt::format_to(std::back_inserter(out), "{}", value.get_int64());
      return;
    case json::kind::uint64:
      fmt::format_to(std::back_inserter(out), "{}", value.get_uint64());
      return;
    case json::kind::bool_:
      out += value.get_bool() ? "true" : "false";
      return;
    case json::kind::null:
      out += "null";
  }
}

}  // namespace

unsigned type_of(const json::value& value) {
  if (value.is_null()) return kNullType;
  if (value.is_bool()) return kBooleanType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  const double number = value.to_number<double>();
  return number == std::floor(number) ? kIntegerType : kFractionType;
}

bool is_equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  if (const auto* x = a.if_array(), *y = b.if_array(); x != nullptr && y != nullptr) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end(), is_equal);
  }
  if (const auto* x = a.if_object(), *y = b.if_object(); x != nullptr && y != nullptr) {
    return x->size() == y->size() && std::all_of(x->begin(), x->end(), [&](const auto& member) {
             const json::value* other = y->if_contains(member.key());
             return other != nullptr && is_equal(member.value(), *other);
           });
  }
  return a == b;
}

std::string to_json(const json::value& value) {
  std::string out;
  append_json(value, out);
  return out;
}

bool SchemaParts::says_more() const {
  return !keys.empty() || !required.empty() || !property_names.empty() || min_properties > 0 ||
         max_properties || !elements.empty() || min_items > 0 || max_items || !contains.empty() ||
         !patterns.empty() || !formats.empty() || min_length > 0 || max_length ||
         !numbers.says_nothing() || alternatives != nullptr;
}

bool SchemaParts::excludes(const Value& value) const {
  return std::any_of(excluded.begin(), excluded.end(),
                     [&](const Value& other) { return is_equal(value, other); });
}

std::vector<std::string> SchemaParts::names() const {
  std::vector<std::string> out = {};
  const auto add_name = [&out](std::string_view name) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.emplace_back(name);
  };
  for (const Keys& each : keys) {
    if (each.properties == nullptr) continue;
    for (const auto& member : *each.properties) {
      add_name(std::string_view(member.key().data(), member.key().size()));
    }
  }
  for (const std::string& name : required) add_name(name);
  return out;
}

SchemaParts::Schemas SchemaParts::schemas_of(std::string_view name) const {
  Schemas out;
  for (const Keys& each : keys) {
    const Value* own = each.properties == nullptr ? nullptr : each.properties->if_contains(name);
    if (own == nullptr && each.pattern_properties == nullptr) own = each.additional;
    if (own != nullptr) out.push_back(own);
  }
  return out;
}

std::size_t SchemaParts::num_first_elements() const {
  std::size_t count = 0;
  for (const Elements& e : elements) {
    if (e.first != nullptr) count = std::max(count, e.first->size());
  }
  return count;
}

SchemaParts::Schemas SchemaParts::element_schemas(std::size_t index) const {
  Schemas out;
  for (const Elements& e : elements) {
    const bool is_first = e.first != nullptr && index < e.first->size();
    const Value* own = is_first ? &(*e.first)[index] : e.rest;
    if (own != nullptr) out.push_back(own);
  }
  return out;
}

core::Status SchemaReader::spend() {
  if (++spent_ <= kMaxSpent) return {};
  return core::invalid_argument("the schema is too large once its references are followed");
}

std::string_view SchemaReader::only_reference(const json::value& schema) {
  const json::object* object = schema.if_object();
  if (object == nullptr) return {};
  std::string_view reference;
  for (const auto& member : *object) {
    const std::string_view key(member.key().data(), member.key().size());
    if (key == "$ref" && member.value().is_string()) {
      reference = view(member.value().get_string());
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

core::Status SchemaReader::add(const json::value& schema, SchemaParts& parts, int depth) {
  TANDEM_TRY(spend());
  if (depth > kMaxDepth) {
    return core::invalid_argument("the schema's references and allOf lists are nested too deep");
  }
  if (schema.is_bool()) {
    if (!schema.get_bool()) parts.types = 0;
    return {};
  }
  const json::object* object = schema.if_object();
  if (object == nullptr) {
    return core::invalid_argument("a schema must be an object, true or false");
  }
  for (const auto& member : *object) {
    const std::string_view key(member.key().data(), member.key().size());
    TANDEM_TRY(add_keyword(key, member.value(), parts, depth));
  }
  TANDEM_TRY(add_keys(*object, parts));
  return add_elements(*object, parts);
}

/// What is said of the complement of types and listed values can be kept, no other.
core::Status SchemaReader::add_not(const json::value& schema, SchemaParts& parts, int depth) {
  SchemaParts refused;
  TANDEM_TRY(add(schema, refused, depth + 1));
  if (refused.says_more() || !refused.excluded.empty()) {
    return unsupported("not", " but of type, enum and const");
  }
  if (!refused.values) {
    parts.types &= ~refused.types;
    return {};
  }
  for (const json::value& value : *refused.values) {
    if ((type_of(value) & refused.types) != 0) parts.excluded.push_back(value);
  }
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
  if (key == "const") {
    add_values({value}, parts);
  } else if (key == "enum") {
    const json::array* list = value.if_array();
    if (list == nullptr) return malformed(key, "a list");
    add_values({list->begin(), list->end()}, parts);
  } else if (key == "pattern" || key == "format") {
    if (!value.is_string()) return malformed(key, "a string");
    (key == "pattern" ? parts.patterns : parts.formats).emplace_back(view(value.get_string()));
  } else if (key == "uniqueItems") {
    if (value != json::value(false)) return unsupported(key, "");
  } else if (key == "multipleOf") {
    return add_step(value, parts);
  } else if (key == "propertyNames") {
    parts.property_names.push_back(&value);
  } else if (key == "$ref") {
    if (!value.is_string()) return malformed(key, "a string");
    TANDEM_ASSIGN(const json::value* target, resolve(view(value.get_string())));
    return add(*target, parts, depth + 1);
  } else if (key == "not") {
    return add_not(value, parts, depth);
  } else if (key == "allOf") {
    const json::array* list = value.if_array();
    if (list == nullptr) return malformed(key, "a list of schemas");
    for (const json::value& schema : *list) TANDEM_TRY(add(schema, parts, depth + 1));
  } else if (key == "anyOf" || key == "oneOf") {
    const json::array* list = value.if_array();
    if (list == nullptr || list->empty()) return malformed(key, "a list of schemas");
    if (parts.alternatives != nullptr) return unsupported("several anyOf or oneOf at once", "");
    parts.alternatives = list;
    parts.is_one_of = key == "oneOf";
  }
  return {};  // anything else describes, and restricts nothing
}

}  // namespace tandem::grammar
