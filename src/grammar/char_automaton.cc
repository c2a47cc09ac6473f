#include "tandem/grammar/char_automaton.h"

#include <algorithm>

#include "tandem/grammar/char_reader.h"
#include "tandem/grammar/regex.h"

namespace tandem::grammar {
namespace {

constexpr std::size_t kMaxNodes = 20'000;

}  // namespace

core::Result<CharAutomaton> CharAutomaton::create(std::string_view pattern, bool must_match_all) {
  RuleSet rules;
  TANDEM_ASSIGN(const ExprId expr, read_regex(rules, pattern, must_match_all, write_plain));
  CharAutomaton out;
  out.new_node();
  out.new_node();
  if (!out.add(rules, expr, 0, 1)) {
    return core::invalid_argument("a pattern beside other conditions takes too many states");
  }
  for (const Node& node : out.nodes_) {
    for (const Edge& edge : node.edges) {
      out.borders_.push_back(edge.range.first);
      out.borders_.push_back(edge.range.last + 1);
    }
  }
  std::sort(out.borders_.begin(), out.borders_.end());
  out.borders_.erase(std::unique(out.borders_.begin(), out.borders_.end()), out.borders_.end());
  out.state_of({0});
  return out;
}

int CharAutomaton::new_node() {
  nodes_.emplace_back();
  return static_cast<int>(nodes_.size()) - 1;
}

/// Thompson's construction; false: too large.
bool CharAutomaton::add(const RuleSet& rules, ExprId id, int from, int to) {
  if (nodes_.size() > kMaxNodes) return false;
  const RuleSet::Expr& e = rules.expr(id);
  const auto skip = [this](int a, int b) {
    nodes_[static_cast<std::size_t>(a)].skips.push_back(b);
  };
  switch (e.kind) {
    case RuleSet::Kind::kChars:
      for (int i = 0; i < e.size; ++i) {
        nodes_[static_cast<std::size_t>(from)].edges.push_back({rules.ranges(e)[i], to});
      }
      return true;
    case RuleSet::Kind::kSequence:
      for (int i = 0; i < e.size; ++i) {
        const int next = new_node();
        if (!add(rules, rules.parts(e)[i], from, next)) return false;
        from = next;
      }
      skip(from, to);
      return true;
    case RuleSet::Kind::kChoice:
      return std::all_of(rules.parts(e), rules.parts(e) + e.size,
                         [&](ExprId part) { return add(rules, part, from, to); });
    case RuleSet::Kind::kRepeat:
      return add_repeat(rules, e, from, to);
    default:  // the empty literal; regular expressions have no others
      skip(from, to);
      return true;
  }
}

bool CharAutomaton::add_repeat(const RuleSet& rules, const RuleSet::Expr& e, int from, int to) {
  const ExprId part = rules.parts(e)[0];
  const int num_copies = e.max == kUnbounded ? e.min + 1 : e.max;
  for (int i = 0; i < num_copies; ++i) {
    const int next = new_node();
    if (i >= e.min) nodes_[static_cast<std::size_t>(from)].skips.push_back(to);
    const bool is_loop = e.max == kUnbounded && i == e.min;
    if (is_loop) nodes_[static_cast<std::size_t>(from)].skips.push_back(next);
    if (!add(rules, part, is_loop ? next : from, next)) return false;
    from = next;
  }
  nodes_[static_cast<std::size_t>(from)].skips.push_back(to);
  return true;
}

/// The state of a set's closure, new if there is none.
int CharAutomaton::state_of(StateSet set) {
  std::vector<bool> is_known(nodes_.size());
  StateSet closure;
  const auto visit = [&](int node) {
    if (is_known[static_cast<std::size_t>(node)]) return;
    is_known[static_cast<std::size_t>(node)] = true;
    closure.push_back(node);
  };
  for (const int node : set) visit(node);
  for (std::size_t i = 0; i < closure.size(); ++i) {
    for (const int node : nodes_[static_cast<std::size_t>(closure[i])].skips) visit(node);
  }
  work_ += closure.size() + nodes_.size() / 64;
  std::sort(closure.begin(), closure.end());
  const auto [it, is_new] = known_.try_emplace(std::move(closure), static_cast<int>(sets_.size()));
  if (is_new) {
    sets_.push_back(&it->first);
    accepts_.push_back(std::binary_search(it->first.begin(), it->first.end(), 1));
  }
  return it->second;
}

bool CharAutomaton::matches(std::string_view text) {
  int state = kStart;
  for (CharReader in(text); !in.at_end();) state = next(state, in.take());
  return accepts(state);
}

int CharAutomaton::next(int state, char32_t c) {
  StateSet targets;
  for (const int node : *sets_[static_cast<std::size_t>(state)]) {
    for (const Edge& edge : nodes_[static_cast<std::size_t>(node)].edges) {
      if (edge.range.first <= c && c <= edge.range.last) targets.push_back(edge.target);
      ++work_;
    }
  }
  return state_of(std::move(targets));
}

}  // namespace tandem::grammar
