#include "tandem/grammar/schema_parts.h"

#include <algorithm>
#include <set>

namespace tandem::grammar {

bool SchemaParts::says_more() const {
  return !keys.empty() || !required.empty() || !property_names.empty() || min_properties > 0 ||
         max_properties || !elements.empty() || min_items > 0 || max_items || !contains.empty() ||
         !patterns.empty() || min_length > 0 || max_length || !numbers.says_nothing() ||
         are_items_unique || !choices.empty();
}

bool SchemaParts::excludes(const Value& value) const {
  return std::any_of(excluded.begin(), excluded.end(),
                     [&](const Value& other) { return is_equal(value, other); });
}

std::vector<std::string> SchemaParts::names() const {
  std::vector<std::string> out;
  std::set<std::string_view> known;
  const auto add_name = [&](std::string_view name) {
    if (known.insert(name).second) out.emplace_back(name);
  };
  for (const Keys& each : keys) {
    if (each.properties == nullptr) continue;
    for (const auto& member : *each.properties) {
      add_name(member.key());
    }
  }
  for (const std::string& name : required) add_name(name);
  return out;
}

bool SchemaParts::is_open() const {
  const auto is_forbidden = [this](const std::string& name) {
    return std::any_of(keys.begin(), keys.end(), [&name](const Keys& each) {
      const Value* own = each.properties == nullptr ? nullptr : each.properties->if_contains(name);
      return own != nullptr && *own == Value(false);
    });
  };
  bool has_additional = false, has_patterns = false;
  for (const Keys& each : keys) {
    has_additional |= each.additional != nullptr;
    has_patterns |= each.pattern_properties != nullptr;
  }
  if (has_additional || has_patterns) return has_additional;
  const std::vector<std::string> all = names();
  return std::all_of(all.begin(), all.end(), is_forbidden);
}

bool SchemaParts::requires_key(std::string_view name) const {
  return std::find(required.begin(), required.end(), name) != required.end();
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

}  // namespace tandem::grammar
