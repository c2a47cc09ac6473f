#include "tandem/grammar/number_set.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <utility>

namespace tandem::grammar {
namespace {

constexpr int kMaxWholeDigits = 18;
constexpr int kMaxDigits = 15;  // of a number with a point
constexpr std::size_t kMaxNodes = 20'000;
constexpr std::size_t kMaxFacts = 1'000'000;  // of all nodes

/// The remainders that a prefix of a number may leave, where those that no more digits tell apart
/// are one. A prefix that no digits can make a multiple leaves kNone.
class Remainders {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit Remainders(const DecimalStep& step) : step_(step) {}

  const DecimalStep& step() const { return step_; }

  std::int32_t after(std::int32_t remainder, int digit, bool is_past_scale) {
    if (remainder == kNone) return kNone;
    if (is_past_scale) return digit == 0 ? remainder : kNone;
    return representative(
        (static_cast<std::uint64_t>(remainder) * 10 + static_cast<std::uint64_t>(digit)) %
        step_.unit);
  }

  /// Whether a number is a multiple that leaves this after so many digits behind its point.
  bool is_multiple(std::int32_t remainder, int num_fraction) const {
    if (remainder == kNone) return false;
    const int num_missing = std::max(0, step_.scale - num_fraction);
    return static_cast<std::uint64_t>(remainder) * power_modulo(10, num_missing, step_.unit) %
               step_.unit ==
           0;
  }

 private:
  /// By what each number of further digits would have to be: nothing where it has more of them.
  std::int32_t representative(std::uint64_t remainder) {
    std::vector<std::uint64_t> wanted;
    std::uint64_t shifted = remainder;
    for (std::uint64_t power = 1; power < step_.unit; power *= 10) {
      const std::uint64_t missing = (step_.unit - shifted) % step_.unit;
      wanted.push_back(missing < power ? missing : step_.unit);
      shifted = shifted * 10 % step_.unit;
    }
    wanted.push_back(shifted);
    return known_.try_emplace(std::move(wanted), static_cast<std::int32_t>(remainder))
        .first->second;
  }

  DecimalStep step_;
  std::map<std::vector<std::uint64_t>, std::int32_t> known_;
};

/// Writes a deterministic automaton that reads a number without its sign, digit by digit. A node is
/// all that the digits so far say: how they compare with each bound and hole, and what they leave
/// when divided by each step.
class DigitGraph {
 public:
  /// `set`: of numbers from 0.
  DigitGraph(RuleSet& rules, const NumberSet& set, bool may_have_fraction)
      : rules_(rules), set_(set), may_have_fraction_(may_have_fraction) {
    if (set.min) marks_.push_back(*set.min);
    if (set.max) marks_.push_back(*set.max);
    marks_.insert(marks_.end(), set.holes.begin(), set.holes.end());
    std::erase_if(marks_, [](const Decimal& mark) { return mark.is_negative; });
    for (const DecimalStep& step : set.steps) remainders_.emplace_back(step);
    for (const DecimalStep& step : set.non_steps) remainders_.emplace_back(step);
  }

  std::optional<ExprId> write() {
    Node start;
    start.orders.resize(marks_.size());
    start.remainders.resize(remainders_.size());
    index_of(std::move(start));
    for (std::size_t i = 0; i < todo_.size(); ++i) {
      const std::size_t num_facts = todo_.size() * (marks_.size() + remainders_.size());
      if (todo_.size() > kMaxNodes || num_facts > kMaxFacts) return std::nullopt;
      const Node& node = *todo_[i];
      add_digits(static_cast<int>(i), node);
      const bool is_whole = node.place == Place::kZero || node.place == Place::kWhole;
      if (is_whole && may_have_fraction_ && node.num_whole < kMaxDigits) {
        add_edge(static_cast<int>(i), rules_.literal("."), after_point(node));
      }
      if (may_end(node)) graph_.ends.push_back(static_cast<int>(i));
    }
    graph_.num_nodes = static_cast<int>(todo_.size());
    return rules_.graph(graph_);
  }

 private:
  enum class Place : std::uint8_t { kStart, kZero, kWhole, kPoint, kFraction };
  struct Node {
    Place place = Place::kStart;
    int num_whole = 0;  // digits before the point, but for a 0
    int num_fraction = 0;
    std::vector<std::int8_t> orders;  // to the marks' first digits: below, equal, above
    std::vector<std::int32_t> remainders;

    auto operator<=>(const Node&) const = default;
  };

  static std::int8_t sign(std::strong_ordering order) {
    return static_cast<std::int8_t>(order < 0 ? -1 : order > 0 ? 1 : 0);
  }

  int index_of(Node node) {
    const auto [it, is_new] = known_.try_emplace(std::move(node), static_cast<int>(todo_.size()));
    if (is_new) todo_.push_back(&it->first);
    return it->second;
  }

  void add_edge(int from, ExprId label, Node to) {
    graph_.edges.push_back({from, index_of(std::move(to)), label});
  }

  /// Neighbouring digits with one target are one edge.
  void add_digits(int from, const Node& node) {
    int first = 0;
    std::optional<Node> target = after_digit(node, 0);
    for (int digit = 1; digit <= 10; ++digit) {
      std::optional<Node> next = digit < 10 ? after_digit(node, digit) : std::nullopt;
      if (digit < 10 && next == target) continue;
      const auto code = [](int d) {
        return U'0' + static_cast<char32_t>(d);
      };
      if (target) add_edge(from, rules_.chars({{code(first), code(digit - 1)}}), *target);
      first = digit;
      target = std::move(next);
    }
  }

  std::optional<Node> after_digit(const Node& node, int digit) {
    const bool is_whole = node.place == Place::kStart || node.place == Place::kWhole;
    if (node.place == Place::kZero) return std::nullopt;
    if (is_whole && node.num_whole == kMaxWholeDigits) return std::nullopt;
    if (!is_whole && node.num_whole + node.num_fraction == kMaxDigits) return std::nullopt;
    Node next = node;
    next.place = !is_whole                                   ? Place::kFraction
                 : node.place == Place::kStart && digit == 0 ? Place::kZero
                                                             : Place::kWhole;
    if (next.place == Place::kZero) return next;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      const int num_whole = std::max(marks_[i].point, 0);
      std::int8_t& order = next.orders[i];
      if (is_whole && node.num_whole == num_whole) {
        order = 1;  // more digits than the mark has
      } else if (order == 0) {
        const int place = is_whole ? node.num_whole - num_whole : node.num_fraction;
        order = sign(digit <=> marks_[i].digit(place));
      }
    }
    for (std::size_t i = 0; i < remainders_.size(); ++i) {
      const bool is_past_scale = !is_whole && node.num_fraction >= remainders_[i].step().scale;
      next.remainders[i] = remainders_[i].after(node.remainders[i], digit, is_past_scale);
      const bool is_hopeless = i < set_.steps.size() && next.remainders[i] == Remainders::kNone;
      if (is_hopeless) return std::nullopt;
    }
    ++(is_whole ? next.num_whole : next.num_fraction);
    if (!is_whole) forget_place(next);
    return next;
  }

  /// Where digits stand behind the point does not matter once all comparisons are decided and the
  /// steps' last digits passed; how many may follow does.
  void forget_place(Node& node) const {
    if (std::find(node.orders.begin(), node.orders.end(), 0) != node.orders.end()) return;
    int scale = 0;
    for (const Remainders& each : remainders_) scale = std::max(scale, each.step().scale);
    const int num_more = std::max(0, node.num_fraction - std::max(scale, 1));
    node.num_whole += num_more;
    node.num_fraction -= num_more;
  }

  /// How the whole number's order to a mark is decided by its number of digits.
  void end_whole(Node& node) const {
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      if (node.num_whole < marks_[i].point) node.orders[i] = -1;
    }
  }

  Node after_point(const Node& node) const {
    Node next = node;
    next.place = Place::kPoint;
    end_whole(next);
    return next;
  }

  bool may_end(Node node) const {
    if (node.place == Place::kStart || node.place == Place::kPoint) return false;
    if (node.place != Place::kFraction) end_whole(node);
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      const int num_left = static_cast<int>(marks_[i].digits.size()) - marks_[i].point;
      if (node.orders[i] == 0 && num_left > node.num_fraction) node.orders[i] = -1;
    }
    std::size_t mark = 0;
    if (set_.min && !set_.min->is_negative) {
      const int order = node.orders[mark++];
      if (order < 0 || (order == 0 && set_.is_min_excluded)) return false;
    }
    if (set_.max && !set_.max->is_negative) {
      const int order = node.orders[mark++];
      if (order > 0 || (order == 0 && set_.is_max_excluded)) return false;
    }
    for (; mark < marks_.size(); ++mark) {
      if (node.orders[mark] == 0) return false;
    }
    for (std::size_t i = 0; i < remainders_.size(); ++i) {
      const bool is_wanted = i < set_.steps.size();
      if (remainders_[i].is_multiple(node.remainders[i], node.num_fraction) != is_wanted) {
        return false;
      }
    }
    return true;
  }

  RuleSet& rules_;
  const NumberSet& set_;
  bool may_have_fraction_;
  std::vector<Decimal> marks_;  // lower bound, upper bound, holes: those from 0
  std::vector<Remainders> remainders_;
  std::map<Node, int> known_;
  std::vector<const Node*> todo_;
  RuleSet::Graph graph_;
};

/// The numbers below 0, without their sign.
NumberSet mirrored(const NumberSet& set) {
  NumberSet out = set;
  out.min = out.max = std::nullopt;
  if (set.max) out.raise_min(-*set.max, set.is_max_excluded);
  if (set.min) out.lower_max(-*set.min, set.is_min_excluded);
  out.raise_min({}, true);
  for (Decimal& hole : out.holes) hole = -hole;
  return out;
}

}  // namespace

void NumberSet::raise_min(const Decimal& bound, bool is_excluded) {
  if (min && (bound < *min || (bound == *min && !is_excluded))) return;
  min = bound;
  is_min_excluded = is_excluded;
}

void NumberSet::lower_max(const Decimal& bound, bool is_excluded) {
  if (max && (bound > *max || (bound == *max && !is_excluded))) return;
  max = bound;
  is_max_excluded = is_excluded;
}

bool NumberSet::contains(const Decimal& number) const {
  if (min && (number < *min || (number == *min && is_min_excluded))) return false;
  if (max && (number > *max || (number == *max && is_max_excluded))) return false;
  const auto divides = [&number](const DecimalStep& step) {
    return step.divides(number);
  };
  return std::find(holes.begin(), holes.end(), number) == holes.end() &&
         std::all_of(steps.begin(), steps.end(), divides) &&
         std::none_of(non_steps.begin(), non_steps.end(), divides);
}

bool NumberSet::is_apart_from(const NumberSet& other) const {
  const auto is_below = [](const NumberSet& low, const NumberSet& high) {
    return low.max && high.min &&
           (*low.max < *high.min ||
            (*low.max == *high.min && (low.is_max_excluded || high.is_min_excluded)));
  };
  return is_below(*this, other) || is_below(other, *this);
}

std::optional<ExprId> write_numbers(RuleSet& rules, const NumberSet& set, bool may_have_fraction) {
  std::vector<ExprId> ways;
  if (!set.max || !set.max->is_negative) {
    const auto positive = DigitGraph(rules, set, may_have_fraction).write();
    if (!positive) return std::nullopt;
    ways.push_back(*positive);
  }
  if (!set.min || set.min->is_negative) {
    const NumberSet below = mirrored(set);
    const auto negative = DigitGraph(rules, below, may_have_fraction).write();
    if (!negative) return std::nullopt;
    ways.push_back(rules.sequence({rules.literal("-"), *negative}));
  }
  return rules.choice(ways);
}

}  // namespace tandem::grammar
