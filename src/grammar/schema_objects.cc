#include <algorithm>
#include <set>

#include "tandem/grammar/schema_writer.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxNodes = 4096;
constexpr std::size_t kMaxPatterns = 4;

}  // namespace

core::Result<ExprId> SchemaWriter::write_object(const SchemaParts& parts, int depth) {
  const std::vector<std::string> names = parts.names();
  if (names.empty() && parts.keys.empty() && parts.property_names.empty() &&
      parts.min_properties == 0 && !parts.max_properties) {
    return parts_.object();
  }
  // Behind a first pair that must be there, every pair stands in one place.
  const bool is_anchored = !names.empty() && parts.requires_key(names[0]) &&
                           parts.min_properties <= 1 && !parts.max_properties;
  TANDEM_ASSIGN(SchemaParts key, reader_.parts_of(parts.property_names));
  key.types &= kStringType;
  std::vector<Pair> pairs;
  for (const std::string& name : names) {
    TANDEM_ASSIGN(const Schemas schemas, reader_.schemas_of(parts, name));
    TANDEM_ASSIGN(const bool is_name, reader_.allows(key, json::value(name)));
    TANDEM_ASSIGN(ExprId value,
                  is_anchored ? write_all(schemas, depth + 1) : write_shared(schemas, depth + 1));
    if (!is_name) value = rules_.nothing();
    pairs.push_back({parts_.pair(parts_.key(name), value), parts.requires_key(name)});
  }
  TANDEM_ASSIGN(const std::optional<ExprId> other, write_other_pair(parts, key, names, depth));
  return write_pairs(parts, pairs, other);
}

/// A pair of a key that has no name in the schema; nothing where there may be none. By which
/// patterns the key matches, since that tells what its value must be.
core::Result<std::optional<ExprId>> SchemaWriter::write_other_pair(
    const SchemaParts& parts, const SchemaParts& key, const std::vector<std::string>& names,
    int depth) {
  struct Pattern {
    TextPattern text;
    const json::value* schema = nullptr;
    const SchemaParts::Keys* keys = nullptr;
  };
  std::vector<Pattern> patterns;
  for (const SchemaParts::Keys& keys : parts.keys) {
    if (keys.pattern_properties == nullptr) continue;
    for (const auto& [regex, schema] : keys.pattern_properties->get_object()) {
      patterns.push_back({{std::string(regex), false, false}, &schema, &keys});
    }
  }
  if (patterns.size() > kMaxPatterns) return refused("more than four patternProperties");
  std::vector<ExprId> ways;
  for (unsigned matched = parts.is_open() ? 0 : 1; matched < 1U << patterns.size(); ++matched) {
    Schemas schemas;
    SchemaParts own_key = key;
    std::set<const SchemaParts::Keys*> matching;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      const bool is_matched = (matched >> i & 1U) != 0;
      own_key.patterns.push_back(patterns[i].text);
      own_key.patterns.back().is_denied = !is_matched;
      if (!is_matched) continue;
      schemas.push_back(patterns[i].schema);
      matching.insert(patterns[i].keys);
    }
    for (const SchemaParts::Keys& keys : parts.keys) {
      if (keys.additional != nullptr && !matching.contains(&keys))
        schemas.push_back(keys.additional);
    }
    TANDEM_ASSIGN(const SchemaParts value_parts, reader_.parts_of(schemas));
    if (value_parts.allows_nothing()) continue;
    TANDEM_ASSIGN(const ExprId value, write_shared(schemas, depth + 1));
    TANDEM_ASSIGN(const ExprId other, write_other_key(std::move(own_key), names, depth));
    ways.push_back(parts_.pair(other, value));
  }
  if (ways.empty()) return std::optional<ExprId>();
  return std::optional(rules_.choice(ways));
}

core::Result<ExprId> SchemaWriter::write_other_key(SchemaParts key,
                                                   const std::vector<std::string>& names,
                                                   int depth) {
  if (key.types == kStringType && !key.values && key.excluded.empty() && !key.says_more()) {
    if (names.empty()) return parts_.any_key();
    TextSet texts;
    texts.holes = names;
    return parts_.key_matching(std::move(texts));
  }
  for (const std::string& name : names) key.excluded.emplace_back(name);
  return write_parts(key, depth + 1);
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
