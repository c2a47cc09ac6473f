#include "tandem/grammar/nfa.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tandem::grammar {
namespace {

constexpr std::size_t kMaxStates = 200'000;
constexpr std::size_t kMaxEdges = 1'000'000;
constexpr int kMaxNesting = 1'000;

struct ByteRange {
  std::uint8_t first = 0;
  std::uint8_t last = 0;
};

/// One to four byte ranges whose product is a range of characters.
struct ByteSequence {
  std::array<ByteRange, 4> ranges;
  std::size_t size = 0;
};

std::array<std::uint8_t, 4> encode(char32_t c, std::size_t size) {
  std::array<std::uint8_t, 4> out = {};
  constexpr std::array<std::uint8_t, 5> kLead = {0, 0, 0xC0, 0xE0, 0xF0};
  for (std::size_t i = size; i-- > 1;) {
    out[i] = static_cast<std::uint8_t>(0x80 | (c & 0x3F));
    c >>= 6;
  }
  out[0] = static_cast<std::uint8_t>(kLead[size] | c);
  return out;
}

/// Cuts a range of characters of one encoded length into byte sequences: where the two ends differ
/// in a byte before the last, the part below and above the whole blocks between are cut off.
void add_sequences(CodePoints range, std::size_t size, std::vector<ByteSequence>& out) {
  std::vector<CodePoints> pending = {range};
  while (!pending.empty()) {
    const CodePoints r = pending.back();
    pending.pop_back();
    bool is_cut = false;
    for (std::size_t i = 1; i < size && !is_cut; ++i) {
      const char32_t low = (char32_t{1} << (6 * i)) - 1;  // of the last i bytes
      if ((r.first & ~low) == (r.last & ~low)) continue;
      if ((r.first & low) != 0) {
        pending.push_back({(r.first | low) + 1, r.last});
        pending.push_back({r.first, r.first | low});
        is_cut = true;
      } else if ((r.last & low) != low) {
        pending.push_back({r.last & ~low, r.last});
        pending.push_back({r.first, (r.last & ~low) - 1});
        is_cut = true;
      }
    }
    if (is_cut) continue;
    ByteSequence sequence;
    sequence.size = size;
    const auto first = encode(r.first, size), last = encode(r.last, size);
    for (std::size_t i = 0; i < size; ++i) sequence.ranges[i] = {first[i], last[i]};
    out.push_back(sequence);
  }
}

std::vector<ByteSequence> byte_sequences(CodePoints range) {
  constexpr std::array<char32_t, 5> kFirstOfSize = {0, 0, 0x80, 0x800, 0x10000};
  constexpr std::array<char32_t, 5> kLastOfSize = {0, 0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  std::vector<ByteSequence> out;
  for (std::size_t size = 1; size <= 4; ++size) {
    const CodePoints part = {std::max(range.first, kFirstOfSize[size]),
                             std::min(range.last, kLastOfSize[size])};
    if (part.first <= part.last) add_sequences(part, size, out);
  }
  return out;
}

class Builder {
 public:
  Builder(const RuleSet& rules, const RuleFacts& facts) : rules_(rules), facts_(facts) {}

  core::Result<Nfa> build() {
    for (RuleId rule = 0; rule < rules_.num_rules(); ++rule) {
      nfa_.starts.push_back(new_state());
      nfa_.ends.push_back(new_state());
      if (rules_.definition(rule) < 0) continue;
      const RuleSet::Count& count = rules_.count(rule);
      if (count.graph >= 0) {
        const std::int32_t before_mark = new_state();
        add_graph(rules_.graph(rules_.expr(count.graph)), nfa_.starts.back(), before_mark, 0, true);
        add(count.mark, before_mark, nfa_.ends.back(), 0);
      } else {
        add(rules_.definition(rule), nfa_.starts.back(), nfa_.ends.back(), 0);
      }
      if (is_too_large()) {
        return core::invalid_argument(fmt::format(
            "the grammar takes more than {} states; ask for fewer repetitions or smaller lists",
            kMaxStates));
      }
      if (is_too_deep_) {
        return core::invalid_argument(
            fmt::format("the grammar is nested more than {} levels deep", kMaxNesting));
      }
    }
    return std::move(nfa_);
  }

 private:
  std::int32_t new_state() {
    nfa_.states.emplace_back();
    return static_cast<std::int32_t>(nfa_.states.size()) - 1;
  }
  bool is_too_large() const { return nfa_.states.size() > kMaxStates || num_edges_ > kMaxEdges; }
  Nfa::State& state(std::int32_t id) { return nfa_.states[static_cast<std::size_t>(id)]; }
  void add_edge(std::int32_t from, const Nfa::Edge& edge) {
    state(from).edges.push_back(edge);
    ++num_edges_;
  }
  void add_bytes(std::int32_t from, ByteRange range, std::int32_t to) {
    add_edge(from, {Nfa::Edge::Kind::kBytes, range.first, range.last, 0, to});
  }
  void skip(std::int32_t from, std::int32_t to) {
    state(from).skips.push_back(to);
    ++num_edges_;
  }

  /// Paths from -> to that read the expression's texts. Adds no edge into `from` and none out of
  /// `to`, unless they are one.
  void add(ExprId id, std::int32_t from, std::int32_t to, int depth) {
    if (depth > kMaxNesting) is_too_deep_ = true;
    if (is_too_deep_ || is_too_large()) return;
    const RuleSet::Expr& e = rules_.expr(id);
    switch (e.kind) {
      case RuleSet::Kind::kLiteral:
        return add_literal(rules_.bytes(e), from, to);
      case RuleSet::Kind::kChars:
        return add_chars(e, from, to);
      case RuleSet::Kind::kToken:
        return add_edge(from, {Nfa::Edge::Kind::kToken, 0, 0, e.begin, to});
      case RuleSet::Kind::kRule:
        return add_call(e.begin, from, to);
      case RuleSet::Kind::kSequence:
        return add_sequence(e, from, to, depth);
      case RuleSet::Kind::kChoice:
        for (int i = 0; i < e.size; ++i) add(rules_.parts(e)[i], from, to, depth + 1);
        return;
      case RuleSet::Kind::kRepeat:
        return add_repeat(e, from, to, depth);
      case RuleSet::Kind::kGraph:
        return add_graph(rules_.graph(e), from, to, depth);
    }
  }

  void add_literal(std::string_view bytes, std::int32_t from, std::int32_t to) {
    for (const char c : bytes) {
      const std::int32_t next = new_state();
      const auto byte = static_cast<std::uint8_t>(c);
      add_bytes(from, {byte, byte}, next);
      from = next;
    }
    skip(from, to);
  }

  void add_chars(const RuleSet::Expr& e, std::int32_t from, std::int32_t to) {
    // continuation[n]: the state before n free continuation bytes and `to`.
    std::array<std::int32_t, 4> continuation = {to, -1, -1, -1};
    const auto before = [&](std::size_t n) {
      for (std::size_t i = 1; i <= n; ++i) {
        if (continuation[i] >= 0) continue;
        continuation[i] = new_state();
        add_bytes(continuation[i], {0x80, 0xBF}, continuation[i - 1]);
      }
      return continuation[n];
    };
    for (int i = 0; i < e.size; ++i) {
      for (const ByteSequence& sequence : byte_sequences(rules_.ranges(e)[i])) {
        std::size_t num_free = 0;
        while (num_free + 1 < sequence.size) {
          const ByteRange& last = sequence.ranges[sequence.size - 1 - num_free];
          if (last.first != 0x80 || last.last != 0xBF) break;
          ++num_free;
        }
        const std::size_t num_bound = sequence.size - num_free;
        std::int32_t at = from;
        for (std::size_t j = 0; j < num_bound; ++j) {
          const std::int32_t next = j + 1 == num_bound ? before(num_free) : new_state();
          add_bytes(at, sequence.ranges[j], next);
          at = next;
        }
      }
    }
  }

  void add_call(RuleId rule, std::int32_t from, std::int32_t to) {
    const auto r = static_cast<std::size_t>(rule);
    if (!facts_.is_productive[r]) return;
    add_edge(from, {Nfa::Edge::Kind::kRule, 0, 0, rule, to});
    if (facts_.is_nullable[r]) skip(from, to);
  }

  void add_sequence(const RuleSet::Expr& e, std::int32_t from, std::int32_t to, int depth) {
    for (int i = 0; i < e.size; ++i) {
      const std::int32_t next = new_state();
      add(rules_.parts(e)[i], from, next, depth + 1);
      from = next;
    }
    skip(from, to);
  }

  void add_repeat(const RuleSet::Expr& e, std::int32_t from, std::int32_t to, int depth) {
    const ExprId part = rules_.parts(e)[0];
    for (int i = 0; i < e.min && !is_too_large(); ++i) {
      const std::int32_t next = new_state();
      add(part, from, next, depth + 1);
      from = next;
    }
    if (e.max == kUnbounded) {
      const std::int32_t loop = new_state();
      skip(from, loop);
      add(part, loop, loop, depth + 1);
      return skip(loop, to);
    }
    for (int i = e.min; i < e.max && !is_too_large(); ++i) {
      const std::int32_t next = new_state();
      skip(from, to);
      add(part, from, next, depth + 1);
      from = next;
    }
    skip(from, to);
  }

  void add_graph(const RuleSet::Graph& graph, std::int32_t from, std::int32_t to, int depth,
                 bool are_edges_parts = false) {
    const auto first = static_cast<std::int32_t>(nfa_.states.size());
    for (std::int32_t i = 0; i < graph.num_nodes; ++i) {
      state(new_state()).is_between_parts = are_edges_parts;
    }
    skip(from, first);
    for (const RuleSet::Graph::Edge& edge : graph.edges) {
      add(edge.text, first + edge.from, first + edge.to, depth + 1);
    }
    for (const std::int32_t end : graph.ends) skip(first + end, to);
  }

  const RuleSet& rules_;
  const RuleFacts& facts_;
  Nfa nfa_;
  std::size_t num_edges_ = 0;
  bool is_too_deep_ = false;
};

/// Whether a way through the graph leads to an end by edges that all have a property.
bool has_way(const RuleSet::Graph& graph, const std::vector<bool>& has_property) {
  std::vector<bool> is_reached(static_cast<std::size_t>(graph.num_nodes));
  is_reached[0] = true;
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (const RuleSet::Graph::Edge& edge : graph.edges) {
      const bool is_new = is_reached[static_cast<std::size_t>(edge.from)] &&
                          !is_reached[static_cast<std::size_t>(edge.to)] &&
                          has_property[static_cast<std::size_t>(edge.text)];
      if (!is_new) continue;
      is_reached[static_cast<std::size_t>(edge.to)] = has_changed = true;
    }
  }
  return std::any_of(graph.ends.begin(), graph.ends.end(), [&](std::int32_t end) {
    return bool{is_reached[static_cast<std::size_t>(end)]};
  });
}

/// The least fixed point of a property that follows from the parts': parts have smaller ids, so
/// that one pass over the expressions settles all but the rules.
template <typename OfExpr>
std::vector<bool> fixed_point(const RuleSet& rules, OfExpr of_expr) {
  std::vector<bool> of_rule(static_cast<std::size_t>(rules.num_rules()));
  std::vector<bool> of(static_cast<std::size_t>(rules.num_exprs()));
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (ExprId id = 0; id < rules.num_exprs(); ++id) {
      of[static_cast<std::size_t>(id)] = of_expr(rules.expr(id), of, of_rule);
    }
    for (RuleId rule = 0; rule < rules.num_rules(); ++rule) {
      const auto r = static_cast<std::size_t>(rule);
      const ExprId definition = rules.definition(rule);
      if (of_rule[r] || definition < 0 || !of[static_cast<std::size_t>(definition)]) continue;
      of_rule[r] = true;
      has_changed = true;
    }
  }
  return of_rule;
}

}  // namespace

RuleFacts analyze(const RuleSet& rules) {
  const auto combine = [&rules](const RuleSet::Expr& e, const std::vector<bool>& of) {
    const auto holds = [&of](ExprId part) {
      return of[static_cast<std::size_t>(part)];
    };
    if (e.kind == RuleSet::Kind::kGraph) return has_way(rules.graph(e), of);
    const ExprId* parts = rules.parts(e);
    if (e.kind == RuleSet::Kind::kSequence) return std::all_of(parts, parts + e.size, holds);
    if (e.kind == RuleSet::Kind::kChoice) return std::any_of(parts, parts + e.size, holds);
    return e.min == 0 || holds(parts[0]);  // kRepeat
  };
  using Kind = RuleSet::Kind;
  RuleFacts facts;
  facts.is_nullable = fixed_point(rules, [&](const RuleSet::Expr& e, const std::vector<bool>& of,
                                             const std::vector<bool>& of_rule) {
    if (e.kind == Kind::kLiteral) return e.size == 0;
    if (e.kind == Kind::kRule) return bool{of_rule[static_cast<std::size_t>(e.begin)]};
    if (e.kind == Kind::kChars || e.kind == Kind::kToken) return false;
    return combine(e, of);
  });
  facts.is_productive = fixed_point(rules, [&](const RuleSet::Expr& e, const std::vector<bool>& of,
                                               const std::vector<bool>& of_rule) {
    if (e.kind == Kind::kChars) return e.size > 0;
    if (e.kind == Kind::kRule) return bool{of_rule[static_cast<std::size_t>(e.begin)]};
    if (e.kind == Kind::kLiteral || e.kind == Kind::kToken) return true;
    return combine(e, of);
  });
  return facts;
}

core::Result<Nfa> Nfa::build(const RuleSet& rules, const RuleFacts& facts) {
  return Builder(rules, facts).build();
}

}  // namespace tandem::grammar
