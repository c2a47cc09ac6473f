#include <algorithm>

#include "tandem/grammar/regex.h"
#include "tandem/grammar/schema_writer.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxNodes = 4096;

}  // namespace

core::Result<ExprId> SchemaWriter::write_object(const SchemaParts& parts, int depth) {
  const std::vector<std::string> names = parts.names();
  if (names.empty() && parts.keys.empty() && parts.property_names.empty() &&
      parts.min_properties == 0 && !parts.max_properties) {
    return parts_.object();
  }
  if (!parts.property_names.empty() && !names.empty()) {
    return refused("propertyNames beside properties");
  }
  // Behind a first pair that must be there, every pair stands in one place.
  const bool is_anchored = !names.empty() && parts.requires_key(names[0]) &&
                           parts.min_properties <= 1 && !parts.max_properties;
  std::vector<Pair> pairs;
  for (const std::string& name : names) {
    const Schemas schemas = parts.schemas_of(name);
    TANDEM_ASSIGN(const ExprId value,
                  is_anchored ? write_all(schemas, depth + 1) : write_shared(schemas, depth + 1));
    pairs.push_back({parts_.pair(parts_.key(name), value), parts.requires_key(name)});
  }
  TANDEM_ASSIGN(const std::optional<ExprId> other, write_other_pair(parts, names, depth));
  return write_pairs(parts, pairs, other);
}

/// A pair of a key that has no name in the schema; nothing where there may be none.
core::Result<std::optional<ExprId>> SchemaWriter::write_other_pair(
    const SchemaParts& parts, const std::vector<std::string>& names, int depth) {
  Schemas schemas;
  for (const SchemaParts::Keys& keys : parts.keys) {
    if (keys.pattern_properties != nullptr) {
      TANDEM_ASSIGN(const ExprId pair,
                    write_pattern_pair(parts, keys.pattern_properties->get_object(), names, depth));
      return std::optional(pair);
    }
    if (keys.additional != nullptr) schemas.push_back(keys.additional);
  }
  TANDEM_ASSIGN(const SchemaParts value_parts, reader_.parts_of(schemas));
  if (!parts.is_open() || value_parts.allows_nothing()) return std::optional<ExprId>();
  TANDEM_ASSIGN(const ExprId value, write_shared(schemas, depth + 1));
  ExprId key = names.empty() ? parts_.any_key() : parts_.key_other_than(names);
  if (!parts.property_names.empty()) {
    TANDEM_ASSIGN(SchemaParts key_parts, reader_.parts_of(parts.property_names));
    key_parts.types &= kStringType;
    TANDEM_ASSIGN(key, write_parts(key_parts, depth + 1));
  }
  return std::optional(parts_.pair(key, value));
}

core::Result<ExprId> SchemaWriter::write_pattern_pair(const SchemaParts& parts,
                                                      const json::object& patterns,
                                                      const std::vector<std::string>& names,
                                                      int depth) {
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

/// The named pairs in their order, then others: a graph over the place and how many pairs there
/// are, as far as it matters. Others may have the same key: but one of them counts for a minimum.
core::Result<ExprId> SchemaWriter::write_pairs(const SchemaParts& parts,
                                               const std::vector<Pair>& pairs,
                                               std::optional<ExprId> other) {
  const int min = count(parts.min_properties), max = count(parts.max_properties);
  const auto num_pairs = static_cast<int>(pairs.size());
  const auto num_required = static_cast<int>(parts.required.size());
  if (min > num_pairs + (other ? 1 : 0)) return refused("more minProperties than named keys");
  if (other && max != kUnbounded && min > std::max(num_required, 1)) {
    return refused("minProperties and maxProperties beside keys without a name");
  }
  const int num_counts = std::max({1, min, max}) + 1;
  if (num_counts > 2 && num_counts > kMaxNodes / (num_pairs + 2)) {
    return refused("such high minProperties or maxProperties");
  }
  RuleSet::Graph graph;
  graph.num_nodes = (num_pairs + 2) * num_counts;
  const auto node = [&](int place, int num) {
    return place * num_counts + std::min(num, num_counts - 1);
  };
  std::vector<bool> is_reached(static_cast<std::size_t>(graph.num_nodes));
  is_reached[0] = true;
  const auto add = [&](int from, int to, ExprId text) {
    if (!is_reached[static_cast<std::size_t>(from)]) return;
    is_reached[static_cast<std::size_t>(to)] = true;
    graph.edges.push_back({from, to, text});
  };
  const auto add_pair = [&](int from, int to, int num, ExprId pair) {
    if (max == kUnbounded || num < max) add(from, to, element_at(num, pair));
  };
  for (int place = 0; place < num_pairs; ++place) {
    const Pair& pair = pairs[static_cast<std::size_t>(place)];
    for (int num = 0; num < num_counts; ++num) {
      add_pair(node(place, num), node(place + 1, num + 1), num, pair.expr);
      if (!pair.is_required) add(node(place, num), node(place + 1, num), rules_.empty());
    }
  }
  const int behind = num_pairs + 1;  // other pairs
  for (int num = 0; other && num < num_counts; ++num) {
    add_pair(node(num_pairs, num), node(behind, num + 1), num, *other);
    const int next = max == kUnbounded ? num : num + 1;
    if (num > 0) add_pair(node(behind, num), node(behind, next), num, *other);
  }
  for (int num = std::max(min, 1); num < num_counts; ++num) {
    graph.ends.push_back(node(num_pairs, num));
    graph.ends.push_back(node(behind, num));
  }
  return parts_.braces(rules_.graph(std::move(graph)), num_required == 0 && min == 0);
}

}  // namespace tandem::grammar
