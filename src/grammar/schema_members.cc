// Which values satisfy schemas: of listed ones, and of those that can be listed.

#include <algorithm>

#include "tandem/grammar/schema_reader.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxValues = 64;

bool is_between(double count, double min, const std::optional<double>& max) {
  return count >= min && (!max || count <= *max);
}

double num_characters(std::string_view text) {
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool are_unique(const json::array& array) {
  for (std::size_t i = 0; i < array.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (is_equal(array[i], array[j])) return false;
    }
  }
  return true;
}

/// The part of a small number before its point; nothing where it is large.
std::optional<std::int64_t> whole_part(const Decimal& number) {
  constexpr int kMostDigits = 15;
  if (number.point > kMostDigits) return std::nullopt;
  std::int64_t value = 0;
  for (int place = -std::max(number.point, 0); place < 0; ++place) {
    value = value * 10 + number.digit(place);
  }
  return number.is_negative ? -value : value;
}

/// The integers between the bounds and one or two beside them, if they are few.
std::optional<std::vector<json::value>> integers_around(const NumberSet& numbers) {
  if (!numbers.min || !numbers.max) return std::nullopt;
  const auto first = whole_part(*numbers.min), last = whole_part(*numbers.max);
  if (!first || !last || *last - *first > kMaxValues) return std::nullopt;
  std::vector<json::value> out;
  for (std::int64_t value = *first - 1; value <= *last + 1; ++value) out.emplace_back(value);
  return out;
}

}  // namespace

core::Result<bool> SchemaReader::matches(const TextPattern& pattern, std::string_view text) {
  auto known = patterns_.find({pattern.regex, pattern.is_whole});
  if (known == patterns_.end()) {
    TANDEM_ASSIGN(CharAutomaton automaton, CharAutomaton::create(pattern.regex, pattern.is_whole));
    known =
        patterns_.emplace(std::pair(pattern.regex, pattern.is_whole), std::move(automaton)).first;
  }
  const std::size_t work = known->second.work();
  const bool is_match = known->second.matches(text);
  TANDEM_TRY(spend((known->second.work() - work) / 1024));
  return is_match != pattern.is_denied;
}

core::Result<SchemaParts::Schemas> SchemaReader::schemas_of(const SchemaParts& parts,
                                                            std::string_view name) {
  SchemaParts::Schemas out;
  for (const SchemaParts::Keys& keys : parts.keys) {
    const std::size_t num_before = out.size();
    const json::value* own =
        keys.properties == nullptr ? nullptr : keys.properties->if_contains(name);
    if (own != nullptr) out.push_back(own);
    if (keys.pattern_properties != nullptr) {
      for (const auto& [regex, schema] : keys.pattern_properties->get_object()) {
        TANDEM_ASSIGN(const bool is_match, matches({std::string(regex), false, false}, name));
        if (is_match) out.push_back(&schema);
      }
    }
    if (out.size() == num_before && keys.additional != nullptr) out.push_back(keys.additional);
  }
  return out;
}

core::Result<bool> SchemaReader::allows_string(const SchemaParts& parts, std::string_view text) {
  for (const TextPattern& pattern : parts.patterns) {
    TANDEM_ASSIGN(const bool is_kept, matches(pattern, text));
    if (!is_kept) return false;
  }
  return is_between(num_characters(text), parts.min_length, parts.max_length);
}

core::Result<bool> SchemaReader::allows(const SchemaParts& parts, const json::value& value,
                                        int depth) {
  TANDEM_TRY(spend(1 + (parts.excluded.size() + (parts.values ? parts.values->size() : 0)) / 1024));
  if (depth > kMaxDepth) return too_deep();
  if ((type_of(value) & parts.types) == 0 || parts.excludes(value)) return false;
  if (parts.values && std::none_of(parts.values->begin(), parts.values->end(),
                                   [&](const auto& other) { return is_equal(value, other); })) {
    return false;
  }
  for (const SchemaParts::Choice& choice : parts.choices) {
    TANDEM_ASSIGN(const bool is_allowed, allows_choice(choice, value, depth));
    if (!is_allowed) return false;
  }
  if (const json::string* text = value.if_string()) {
    return allows_string(parts, *text);
  }
  if (const json::array* array = value.if_array()) return allows_array(parts, *array, depth);
  if (const json::object* object = value.if_object()) return allows_object(parts, *object, depth);
  const auto number = value.is_number() ? Decimal::of(value) : std::nullopt;
  return !value.is_number() || (number && parts.numbers.contains(*number));
}

core::Result<bool> SchemaReader::allows_all(const SchemaParts::Schemas& schemas,
                                            const json::value& value, int depth) {
  TANDEM_ASSIGN(const SchemaParts parts, parts_of(schemas));
  return allows(parts, value, depth + 1);
}

core::Result<bool> SchemaReader::allows_choice(const SchemaParts::Choice& choice,
                                               const json::value& value, int depth) {
  int num_allowed = 0;
  for (const Claims& claims : choice.branches) {
    SchemaParts parts;
    for (const Claim& claim : claims) TANDEM_TRY(add(claim, parts));
    TANDEM_ASSIGN(const bool is_allowed, allows(parts, value, depth + 1));
    num_allowed += is_allowed ? 1 : 0;
  }
  return num_allowed == 1 || (num_allowed > 1 && !choice.is_one_of);
}

core::Result<bool> SchemaReader::allows_array(const SchemaParts& parts, const json::array& array,
                                              int depth) {
  const auto size = static_cast<double>(array.size());
  if (!is_between(size, parts.min_items, parts.max_items)) return false;
  if (parts.are_items_unique && !are_unique(array)) return false;
  for (std::size_t i = 0; i < array.size(); ++i) {
    TANDEM_ASSIGN(const bool is_allowed, allows_all(parts.element_schemas(i), array[i], depth));
    if (!is_allowed) return false;
  }
  for (const SchemaParts::Contains& contains : parts.contains) {
    double count = 0;
    for (const json::value& element : array) {
      TANDEM_ASSIGN(const bool is_one, allows_all({contains.schema}, element, depth));
      count += is_one ? 1 : 0;
    }
    if (!is_between(count, contains.min, contains.max)) return false;
  }
  return true;
}

core::Result<bool> SchemaReader::allows_object(const SchemaParts& parts, const json::object& object,
                                               int depth) {
  const auto size = static_cast<double>(object.size());
  if (!is_between(size, parts.min_properties, parts.max_properties)) return false;
  for (const std::string& name : parts.required) {
    if (!object.contains(name)) return false;
  }
  for (const auto& [name, member] : object) {
    TANDEM_ASSIGN(const auto schemas, schemas_of(parts, name));
    TANDEM_ASSIGN(const bool is_allowed, allows_all(schemas, member, depth));
    if (!is_allowed) return false;
    TANDEM_ASSIGN(const bool is_name, allows_all(parts.property_names, name, depth));
    if (!is_name) return false;
  }
  return true;
}

core::Result<std::optional<std::vector<json::value>>> SchemaReader::few_values(
    const SchemaParts& parts, int depth) {
  using Values = std::vector<json::value>;
  TANDEM_TRY(spend());
  if (depth > kMaxDepth) return too_deep();
  Values candidates;
  if (parts.values) {
    candidates = *parts.values;
  } else if (!parts.choices.empty()) {
    TANDEM_ASSIGN(const std::vector<Branch> all, branches(parts));
    for (const Branch& branch : all) {
      TANDEM_ASSIGN(const auto values, few_values(branch.parts, depth + 1));
      if (!values) return std::optional<Values>();
      candidates.insert(candidates.end(), values->begin(), values->end());
    }
  } else {
    if ((parts.types & ~(kNullType | kBooleanType | kIntegerType)) != 0) {
      return std::optional<Values>();
    }
    if ((parts.types & kIntegerType) != 0) {
      const auto integers = integers_around(parts.numbers);
      if (!integers) return std::optional<Values>();
      candidates = *integers;
    }
    for (const json::value& value : {json::value(true), json::value(false), json::value()}) {
      candidates.push_back(value);
    }
  }
  Values out;
  for (const json::value& value : candidates) {
    TANDEM_ASSIGN(const bool is_allowed, allows(parts, value));
    const bool is_new = std::none_of(
        out.begin(), out.end(), [&](const json::value& other) { return is_equal(value, other); });
    if (is_allowed && is_new) out.push_back(value);
  }
  if (out.size() > kMaxValues) return std::optional<Values>();
  return std::optional(std::move(out));
}

}  // namespace tandem::grammar
