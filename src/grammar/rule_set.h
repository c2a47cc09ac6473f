#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/units.h"

namespace tandem::grammar {

using ExprId = std::int32_t;
using RuleId = std::int32_t;

inline constexpr int kUnbounded = -1;

/// Code points first..last.
struct CodePoints {
  char32_t first = 0;
  char32_t last = 0;
};

/// Sorted, without overlaps or surrogates, inside U+0000..U+10FFFF; the complement if `negated`.
std::vector<CodePoints> normalized(std::vector<CodePoints> set, bool negated = false);

/// A context-free grammar over bytes and tokens under construction: rules and the expressions that
/// they stand for. What the front ends (schema, regex, GBNF) write and Automaton::compile reads.
/// Expressions are made bottom up, so that an expression's parts have smaller ids. Parts may be
/// shared. Plain data. Thread: one.
class RuleSet {
 public:
  enum class Kind : std::uint8_t {
    kLiteral,
    kChars,
    kToken,
    kRule,
    kSequence,
    kChoice,
    kRepeat,
    kGraph
  };
  struct Expr {
    Kind kind = Kind::kLiteral;
    std::int32_t begin = 0;  ///< of bytes(), ranges() or parts(); the rule, the token, the graph
    std::int32_t size = 0;
    std::int32_t min = 0;  ///< of a repetition
    std::int32_t max = 0;  ///< kUnbounded: no end
  };
  /// Paths from node 0 to one of the ends: the texts of their edges in turn.
  struct Graph {
    struct Edge {
      std::int32_t from = 0, to = 0;
      ExprId text = 0;
    };
    std::int32_t num_nodes = 1;
    std::vector<Edge> edges;
    std::vector<std::int32_t> ends;
  };

  ExprId empty() { return literal({}); }   ///< the text of no byte
  ExprId nothing() { return choice({}); }  ///< no text at all
  ExprId literal(std::string_view bytes);
  ExprId chars(const std::vector<CodePoints>& set);  ///< one character; normalized() ranges
  ExprId any_char() { return chars(normalized({}, true)); }
  ExprId any_text() { return repeat(any_char(), 0); }
  ExprId token(TokenId token);  ///< this token itself, whatever its bytes
  ExprId rule(RuleId rule);
  ExprId sequence(const std::vector<ExprId>& parts) { return list(Kind::kSequence, parts); }
  ExprId choice(const std::vector<ExprId>& parts) { return list(Kind::kChoice, parts); }
  ExprId repeat(ExprId part, int min, int max = kUnbounded);
  ExprId optional(ExprId part) { return repeat(part, 0, 1); }
  ExprId graph(Graph graph);

  /// A rule to be defined later; undefined it matches nothing. `name` is for messages.
  RuleId declare(std::string name);
  void define(RuleId rule, ExprId expr) { definitions_[static_cast<std::size_t>(rule)] = expr; }
  RuleId add_rule(std::string name, ExprId expr);
  /// A rule of min to max (kUnbounded: no end) edges of the graph and then a mark, counted rather
  /// than written out: any number takes the same states. Edges read bytes only, at least one, and
  /// none begins with another; the mark is one byte, which begins no edge, or one token. From each
  /// end of the graph an edge must lead to an end, so that what can end after n edges can after
  /// more.
  RuleId add_counted(std::string name, Graph graph, int min, int max, ExprId mark);
  /// The rule that the whole text must match.
  void set_root(RuleId rule) { root_ = rule; }

  RuleId root() const { return root_; }
  int num_rules() const { return static_cast<int>(definitions_.size()); }
  int num_exprs() const { return static_cast<int>(exprs_.size()); }
  const std::string& name(RuleId rule) const { return names_[static_cast<std::size_t>(rule)]; }
  /// -1: not defined.
  ExprId definition(RuleId rule) const { return definitions_[static_cast<std::size_t>(rule)]; }
  struct Count {
    ExprId graph = -1;  ///< -1: the rule does not count
    ExprId mark = -1;
    std::int32_t min = 0;
    std::int32_t max = kUnbounded;
  };
  const Count& count(RuleId rule) const { return counts_[static_cast<std::size_t>(rule)]; }
  const Expr& expr(ExprId id) const { return exprs_[static_cast<std::size_t>(id)]; }
  std::string_view bytes(const Expr& e) const {
    return std::string_view(bytes_).substr(static_cast<std::size_t>(e.begin),
                                           static_cast<std::size_t>(e.size));
  }
  const CodePoints* ranges(const Expr& e) const { return ranges_.data() + e.begin; }
  const ExprId* parts(const Expr& e) const { return parts_.data() + e.begin; }
  const Graph& graph(const Expr& e) const { return graphs_[static_cast<std::size_t>(e.begin)]; }

 private:
  ExprId add(Expr expr);
  ExprId list(Kind kind, const std::vector<ExprId>& parts);

  std::vector<Expr> exprs_;
  std::string bytes_;
  std::vector<CodePoints> ranges_;
  std::vector<ExprId> parts_;
  std::vector<Graph> graphs_;
  std::vector<std::string> names_;
  std::vector<ExprId> definitions_;
  std::vector<Count> counts_;  // by rule
  RuleId root_ = 0;
};

}  // namespace tandem::grammar
