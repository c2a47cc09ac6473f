#include "tandem/grammar/rule_set.h"

#include <algorithm>
#include <utility>

namespace tandem::grammar {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr CodePoints kSurrogates = {0xD800, 0xDFFF};

void push_without_surrogates(CodePoints range, std::vector<CodePoints>& out) {
  if (range.first < kSurrogates.first) {
    out.push_back({range.first, std::min<char32_t>(range.last, kSurrogates.first - 1)});
  }
  if (range.last > kSurrogates.last) {
    out.push_back({std::max<char32_t>(range.first, kSurrogates.last + 1), range.last});
  }
}

}  // namespace

std::vector<CodePoints> normalized(std::vector<CodePoints> set, bool negated) {
  std::erase_if(set,
                [](const CodePoints& r) { return r.first > r.last || r.first > kLastCodePoint; });
  std::sort(set.begin(), set.end(),
            [](const CodePoints& a, const CodePoints& b) { return a.first < b.first; });
  std::vector<CodePoints> joined;
  for (const CodePoints& range : set) {
    const char32_t last = std::min(range.last, kLastCodePoint);
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, last);
    } else {
      joined.push_back({range.first, last});
    }
  }
  if (negated) {
    std::vector<CodePoints> gaps;
    char32_t next = 0;
    for (const CodePoints& range : joined) {
      if (range.first > next) gaps.push_back({next, range.first - 1});
      next = range.last + 1;
    }
    if (next <= kLastCodePoint) gaps.push_back({next, kLastCodePoint});
    joined = std::move(gaps);
  }
  std::vector<CodePoints> out;
  for (const CodePoints& range : joined) push_without_surrogates(range, out);
  return out;
}

ExprId RuleSet::add(Expr expr) {
  exprs_.push_back(expr);
  return static_cast<ExprId>(exprs_.size()) - 1;
}

ExprId RuleSet::literal(std::string_view bytes) {
  const auto begin = static_cast<std::int32_t>(bytes_.size());
  bytes_.append(bytes);
  return add({Kind::kLiteral, begin, static_cast<std::int32_t>(bytes.size())});
}

ExprId RuleSet::chars(const std::vector<CodePoints>& set) {
  const auto begin = static_cast<std::int32_t>(ranges_.size());
  ranges_.insert(ranges_.end(), set.begin(), set.end());
  return add({Kind::kChars, begin, static_cast<std::int32_t>(set.size())});
}

ExprId RuleSet::token(TokenId token) {
  return add({Kind::kToken, token});
}

ExprId RuleSet::rule(RuleId rule) {
  return add({Kind::kRule, rule});
}

ExprId RuleSet::list(Kind kind, const std::vector<ExprId>& parts) {
  if (parts.size() == 1) return parts[0];
  const auto begin = static_cast<std::int32_t>(parts_.size());
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  return add({kind, begin, static_cast<std::int32_t>(parts.size())});
}

ExprId RuleSet::repeat(ExprId part, int min, int max) {
  const auto begin = static_cast<std::int32_t>(parts_.size());
  parts_.push_back(part);
  return add({Kind::kRepeat, begin, 1, min, max});
}

ExprId RuleSet::graph(Graph graph) {
  graphs_.push_back(std::move(graph));
  return add({Kind::kGraph, static_cast<std::int32_t>(graphs_.size()) - 1});
}

RuleId RuleSet::declare(std::string name) {
  names_.push_back(std::move(name));
  definitions_.push_back(-1);
  counts_.emplace_back();
  return static_cast<RuleId>(definitions_.size()) - 1;
}

RuleId RuleSet::add_rule(std::string name, ExprId expr) {
  const RuleId rule = declare(std::move(name));
  define(rule, expr);
  return rule;
}

RuleId RuleSet::add_counted(std::string name, Graph graph, int min, int max, ExprId mark) {
  const ExprId parts = this->graph(std::move(graph));
  const RuleId rule = add_rule(std::move(name), sequence({parts, mark}));
  counts_.back() = {parts, mark, min, max};
  return rule;
}

}  // namespace tandem::grammar
