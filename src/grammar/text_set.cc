#include "tandem/grammar/text_set.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "tandem/grammar/char_automaton.h"
#include "tandem/grammar/char_reader.h"

namespace tandem::grammar {
namespace {

constexpr std::size_t kMaxNodes = 20'000;
constexpr std::size_t kMaxWork = 4'000'000;
constexpr char32_t kEndOfCharacters = 0x110000;

std::vector<char32_t> characters(std::string_view text) {
  std::vector<char32_t> out;
  for (CharReader in(text); !in.at_end();) out.push_back(in.take());
  return out;
}

core::Status too_many_states() {
  return core::invalid_argument(
      "the patterns, lengths and excluded texts of a string take too many states together, and "
      "cannot be kept while generating; use fewer or shorter ones");
}

/// Writes the product of all conditions as a graph.
class TextGraph {
 public:
  TextGraph(RuleSet& rules, const TextSet& set, const CharWriter& write)
      : rules_(rules), set_(set), write_(write) {}

  core::Result<RuleSet::Graph> make() {
    for (const TextPattern& pattern : set_.patterns) {
      TANDEM_ASSIGN(CharAutomaton automaton,
                    CharAutomaton::create(pattern.regex, pattern.is_whole));
      automata_.push_back(std::move(automaton));
      nexts_.emplace_back();
    }
    for (const std::string& hole : set_.holes) holes_.push_back(characters(hole));
    std::sort(holes_.begin(), holes_.end());
    find_classes();
    Node start;
    start.states.assign(automata_.size(), CharAutomaton::kStart);
    start.last_hole = static_cast<int>(holes_.size());
    index_of(std::move(start));
    for (std::size_t i = 0; i < todo_.size(); ++i) {
      if (todo_.size() > kMaxNodes || work() > kMaxWork) return too_many_states();
      add_edges(static_cast<int>(i), *todo_[i]);
      if (may_end(*todo_[i])) graph_.ends.push_back(static_cast<int>(i));
    }
    graph_.num_nodes = static_cast<int>(todo_.size());
    return std::move(graph_);
  }

 private:
  struct Node {
    std::vector<int> states;  // of the patterns' automata
    int length = 0;           // as far as it matters
    // The holes that begin with all characters so far, and how many these are.
    int first_hole = 0, last_hole = 0, hole_length = 0;

    auto operator<=>(const Node&) const = default;
  };

  std::size_t work() const {
    std::size_t sum = work_;
    for (const CharAutomaton& automaton : automata_) sum += automaton.work();
    return sum;
  }

  /// Characters that no condition tells apart are a class.
  void find_classes() {
    std::vector<char32_t> borders = {0, kEndOfCharacters};
    for (const CharAutomaton& automaton : automata_) {
      borders.insert(borders.end(), automaton.borders().begin(), automaton.borders().end());
    }
    for (const auto& hole : holes_) {
      for (const char32_t c : hole) borders.insert(borders.end(), {c, c + 1});
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      classes_.push_back({borders[i], borders[i + 1] - 1});
    }
  }

  int index_of(Node node) {
    const auto [it, is_new] = known_.try_emplace(std::move(node), static_cast<int>(todo_.size()));
    if (is_new) todo_.push_back(&it->first);
    return it->second;
  }

  void add_edges(int from, const Node& node) {
    if (node.length == set_.max_length) return;
    std::map<int, std::vector<CodePoints>> sets;  // by target
    for (std::size_t c = 0; c < classes_.size() && work() <= kMaxWork; ++c) {
      Node next = after(node, c);
      if (is_hopeless(next)) continue;
      sets[index_of(std::move(next))].push_back(classes_[c]);
    }
    for (auto& [to, set] : sets) graph_.edges.push_back({from, to, spelled(std::move(set))});
  }

  int next_state(std::size_t automaton, int state, std::size_t char_class) {
    constexpr int kUnknown = -1;
    std::vector<int>& nexts = nexts_[automaton];
    const std::size_t at = static_cast<std::size_t>(state) * classes_.size() + char_class;
    if (at >= nexts.size()) {
      nexts.resize((static_cast<std::size_t>(state) + 1) * classes_.size(), kUnknown);
    }
    if (nexts[at] == kUnknown) {
      nexts[at] = automata_[automaton].next(state, classes_[char_class].first);
    }
    return nexts[at];
  }

  Node after(const Node& node, std::size_t char_class) {
    Node next = node;
    work_ += 1 + automata_.size();
    for (std::size_t i = 0; i < automata_.size(); ++i) {
      next.states[i] = next_state(i, node.states[i], char_class);
    }
    const char32_t c = classes_[char_class].first;
    const bool counts = set_.max_length != kUnbounded || node.length < set_.min_length;
    if (counts) ++next.length;
    while (next.first_hole < next.last_hole && !begins(next.first_hole, node.hole_length, c)) {
      ++next.first_hole;
    }
    while (next.first_hole < next.last_hole && !begins(next.last_hole - 1, node.hole_length, c)) {
      --next.last_hole;
    }
    const bool is_over = next.first_hole == next.last_hole;
    next.hole_length = is_over ? 0 : node.hole_length + 1;
    if (is_over) next.first_hole = next.last_hole = 0;
    return next;
  }

  /// Whether a hole's character at this place is `c`. Sorted, those where it is stand together.
  bool begins(int hole, int place, char32_t c) {
    ++work_;
    const auto& text = holes_[static_cast<std::size_t>(hole)];
    return static_cast<std::size_t>(place) < text.size() &&
           text[static_cast<std::size_t>(place)] == c;
  }

  bool is_hopeless(const Node& node) const {
    for (std::size_t i = 0; i < automata_.size(); ++i) {
      if (!set_.patterns[i].is_denied && automata_[i].is_dead(node.states[i])) return true;
    }
    return false;
  }

  bool may_end(const Node& node) const {
    for (std::size_t i = 0; i < automata_.size(); ++i) {
      if (automata_[i].accepts(node.states[i]) == set_.patterns[i].is_denied) return false;
    }
    const bool is_hole = node.first_hole < node.last_hole &&
                         holes_[static_cast<std::size_t>(node.first_hole)].size() ==
                             static_cast<std::size_t>(node.hole_length);
    return node.length >= set_.min_length && !is_hole;
  }

  ExprId spelled(std::vector<CodePoints> set) {
    set = normalized(std::move(set));
    std::vector<char32_t> key;
    for (const CodePoints& range : set) key.insert(key.end(), {range.first, range.last});
    const auto [known, is_new] = spelled_.try_emplace(std::move(key), 0);
    if (is_new) known->second = write_(rules_, set);
    return known->second;
  }

  RuleSet& rules_;
  const TextSet& set_;
  const CharWriter& write_;
  std::vector<CharAutomaton> automata_;
  std::vector<std::vector<int>> nexts_;       // of each automaton: [states, classes]
  std::vector<std::vector<char32_t>> holes_;  // sorted
  std::vector<CodePoints> classes_;
  std::map<Node, int> known_;
  std::vector<const Node*> todo_;
  std::map<std::vector<char32_t>, ExprId> spelled_;
  RuleSet::Graph graph_;
  std::size_t work_ = 0;
};

/// Edges of the shortest way to an end.
int shortest_way(const RuleSet::Graph& graph) {
  constexpr int kFar = std::numeric_limits<int>::max();
  std::vector<int> length(static_cast<std::size_t>(graph.num_nodes), kFar);
  length[0] = 0;
  for (const RuleSet::Graph::Edge& edge : graph.edges) {  // nearest first, as they were made
    int& to = length[static_cast<std::size_t>(edge.to)];
    to = std::min(to, length[static_cast<std::size_t>(edge.from)] + 1);
  }
  int shortest = kFar;
  for (const int end : graph.ends) {
    shortest = std::min(shortest, length[static_cast<std::size_t>(end)]);
  }
  return shortest;
}

/// Whether what can end can also go on by one character and end then.
bool can_go_on(const RuleSet::Graph& graph) {
  const std::set<int> ends(graph.ends.begin(), graph.ends.end());
  std::set<int> before_end;
  for (const RuleSet::Graph::Edge& edge : graph.edges) {
    if (ends.contains(edge.to)) before_end.insert(edge.from);
  }
  return std::includes(before_end.begin(), before_end.end(), ends.begin(), ends.end());
}

}  // namespace

core::Result<ExprId> write_texts(RuleSet& rules, const TextSet& set, const CharWriter& write,
                                 std::optional<ExprId> mark) {
  const bool has_length = set.min_length > 0 || set.max_length != kUnbounded;
  if (has_length && mark) {
    TextSet of_any_length = set;
    of_any_length.min_length = 0;
    of_any_length.max_length = kUnbounded;
    TANDEM_ASSIGN(RuleSet::Graph graph, TextGraph(rules, of_any_length, write).make());
    const int least = std::max(shortest_way(graph), set.min_length);
    if (set.max_length != kUnbounded && least > set.max_length) return rules.nothing();
    if (can_go_on(graph)) {
      return rules.rule(
          rules.add_counted("string", std::move(graph), set.min_length, set.max_length, *mark));
    }
  }
  TANDEM_ASSIGN(RuleSet::Graph graph, TextGraph(rules, set, write).make());
  const ExprId texts = rules.graph(std::move(graph));
  return mark ? rules.sequence({texts, *mark}) : texts;
}

}  // namespace tandem::grammar
