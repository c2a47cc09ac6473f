#include <algorithm>
#include <map>

#include "tandem/grammar/schema_writer.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

constexpr int kMaxNodes = 1024;

}  // namespace

core::Result<ExprId> SchemaWriter::write_array(const SchemaParts& parts, int depth) {
  const double min = parts.min_items;
  const bool may_repeat = !parts.max_items || *parts.max_items > 1;
  if (parts.are_items_unique && may_repeat) return write_unique_array(parts);
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
  if (max == 0) return rules_.sequence({rules_.literal("["), parts_.space(), rules_.literal("]")});
  return parts_.brackets(list_of(first, rest, std::max(count(min), 1), max), min == 0);
}

/// An element with what stands before it.
ExprId SchemaWriter::element_at(int index, ExprId element) {
  return index == 0 ? element : rules_.sequence({parts_.comma(), element});
}

/// A graph over how many elements there are and how many of them satisfy parts.contains, too, as
/// far as it matters. Where they may be too many, the others must not satisfy it.
core::Result<ExprId> SchemaWriter::write_containing_array(const SchemaParts& parts, int depth) {
  if (parts.contains.size() > 1) return refused("several contains of one array");
  const SchemaParts::Contains& contains = parts.contains[0];
  const int min = count(parts.min_items), max = count(parts.max_items);
  const int min_wanted = count(contains.min), max_wanted = count(contains.max);
  const int num_places = std::max({1, static_cast<int>(parts.num_first_elements()), min, max}) + 1;
  const int num_counts = std::max(min_wanted, max_wanted) + 1;
  if (num_places > kMaxNodes / num_counts) {
    return refused("contains with such high counts (minItems, maxItems, minContains, maxContains)");
  }
  RuleSet::Graph graph;
  graph.num_nodes = num_places * num_counts;
  const auto node = [&](int place, int wanted) {
    return std::min(place, num_places - 1) * num_counts + std::min(wanted, num_counts - 1);
  };
  ExprId any = 0, one = 0;
  for (int place = 0; place < num_places; ++place) {
    if (max != kUnbounded && place >= max) break;
    if (static_cast<std::size_t>(place) <= parts.num_first_elements()) {
      TANDEM_ASSIGN(SchemaParts element,
                    reader_.parts_of(parts.element_schemas(static_cast<std::size_t>(place))));
      SchemaParts wanted = element;
      TANDEM_TRY(reader_.add(*contains.schema, wanted));
      if (contains.max) TANDEM_TRY(reader_.add_denied(*contains.schema, element));
      TANDEM_ASSIGN(any, shared(write_parts(element, depth + 1)));
      TANDEM_ASSIGN(one, shared(write_parts(wanted, depth + 1)));
    }
    for (int seen = 0; seen < num_counts; ++seen) {
      graph.edges.push_back({node(place, seen), node(place + 1, seen), element_at(place, any)});
      if (contains.max && seen >= max_wanted) continue;
      graph.edges.push_back({node(place, seen), node(place + 1, seen + 1), element_at(place, one)});
    }
  }
  for (int place = std::max(min, 1); place < num_places; ++place) {
    for (int seen = min_wanted; seen < num_counts; ++seen) graph.ends.push_back(node(place, seen));
  }
  return parts_.brackets(rules_.graph(std::move(graph)), min == 0 && min_wanted == 0);
}

/// A graph over which of the values, which must be few, have been there.
core::Result<ExprId> SchemaWriter::write_unique_array(const SchemaParts& parts) {
  if (!parts.contains.empty()) return refused("uniqueItems beside contains");
  const auto num_first = static_cast<int>(parts.num_first_elements());
  const int min = count(parts.min_items), max = count(parts.max_items);
  std::vector<json::value> values;
  std::vector<ExprId> texts;
  std::vector<std::vector<std::size_t>> allowed;  // by place, the last for all behind it
  for (int place = 0; place <= num_first; ++place) {
    TANDEM_ASSIGN(const SchemaParts element,
                  reader_.parts_of(parts.element_schemas(static_cast<std::size_t>(place))));
    TANDEM_ASSIGN(const auto few, reader_.few_values(element));
    if (!few) return refused("uniqueItems of other elements than a few listed values");
    allowed.emplace_back();
    for (const json::value& value : *few) {
      const auto known = std::find_if(values.begin(), values.end(), [&](const json::value& other) {
        return is_equal(value, other);
      });
      allowed.back().push_back(static_cast<std::size_t>(known - values.begin()));
      if (known != values.end()) continue;
      values.push_back(value);
      texts.push_back(rules_.rule(rules_.add_rule("element", write_constant(value))));
    }
  }
  RuleSet::Graph graph;
  std::map<std::vector<bool>, int> nodes;
  std::vector<std::vector<bool>> todo = {std::vector<bool>(values.size())};
  nodes.emplace(todo[0], 0);
  for (std::size_t i = 0; i < todo.size(); ++i) {
    const std::vector<bool> taken = todo[i];
    const auto place = static_cast<int>(std::count(taken.begin(), taken.end(), true));
    if (place > 0 && place >= min) graph.ends.push_back(static_cast<int>(i));
    if (max != kUnbounded && place >= max) continue;
    for (const std::size_t value : allowed[static_cast<std::size_t>(std::min(place, num_first))]) {
      if (taken[value]) continue;
      std::vector<bool> after = taken;
      after[value] = true;
      const auto [it, is_new] = nodes.try_emplace(after, static_cast<int>(todo.size()));
      if (is_new) todo.push_back(after);
      graph.edges.push_back({static_cast<int>(i), it->second, element_at(place, texts[value])});
    }
    if (todo.size() > kMaxNodes) return refused("uniqueItems of more than about ten values");
  }
  graph.num_nodes = static_cast<int>(todo.size());
  return parts_.brackets(rules_.graph(std::move(graph)), min == 0);
}

/// At least min (1 or more) and at most max elements: the first ones, then `rest`.
ExprId SchemaWriter::list_of(const std::vector<ExprId>& first, ExprId rest, int min, int max) {
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

}  // namespace tandem::grammar
