#include "tandem/grammar/json_parts.h"

#include <algorithm>
#include <utility>

#include "tandem/core/json_escape.h"

namespace tandem::grammar {
namespace {

constexpr int kMaxIndentation = 20;
constexpr int kMaxDigits = 18;

using Set = std::vector<CodePoints>;

/// Characters of a call's strings, and of its bare keys.
const Set kText = {{'\t', '\n'}, {'\r', '\r'}, {0x20, 0x10FFFF}};
const Set kBare = {{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

const Set kPlain = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};

bool holds(const Set& set, char32_t c) {
  return std::any_of(set.begin(), set.end(),
                     [c](const CodePoints& r) { return r.first <= c && c <= r.last; });
}

Set intersection(const Set& a, const Set& b) {
  Set out;
  for (const CodePoints& x : a) {
    for (const CodePoints& y : b) {
      const CodePoints both = {std::max(x.first, y.first), std::min(x.last, y.last)};
      if (both.first <= both.last) out.push_back(both);
    }
  }
  return normalized(std::move(out));
}

}  // namespace

ExprId write_in_json_string(RuleSet& rules, const Set& set) {
  std::vector<ExprId> parts = {rules.chars(intersection(set, kPlain))};
  std::map<std::string, Set> escapes;  // last characters by what is before them
  const auto add_escape = [&](char32_t c) {
    if (!holds(set, c)) return;
    const char byte = static_cast<char>(c);
    std::string escaped;
    core::append_json_escaped({&byte, 1}, escaped);
    const auto last = static_cast<char32_t>(escaped.back());
    escaped.pop_back();
    escapes[escaped].push_back({last, last});
  };
  for (char32_t c = 0; c < 0x20; ++c) add_escape(c);
  add_escape('"');
  add_escape('\\');
  for (auto& [before, last] : escapes) {
    parts.push_back(
        rules.sequence({rules.literal(before), rules.chars(normalized(std::move(last)))}));
  }
  return rules.choice(parts);
}

JsonParts::JsonParts(RuleSet& rules, std::optional<TokenId> quote) : rules_(&rules), quote_(quote) {
  const auto chars = [&](Set set) {
    return rules.chars(normalized(std::move(set)));
  };
  space_ = rules.add_rule(
      "space",
      rules.choice(
          {rules.empty(), rules.literal(" "),
           rules.sequence({rules.literal("\n"),
                           rules.repeat(chars({{'\t', '\t'}, {' ', ' '}}), 0, kMaxIndentation)})}));
  string_tail_ =
      rules.add_rule("string", rules.sequence({rules.repeat(any_char(), 0), quote_mark()}));
  value_ = rules.declare("value");
  object_ =
      rules.add_rule("object", braces(comma_list(pair(any_key(), value()), 1, kUnbounded), true));
  array_ = rules.add_rule("array", brackets(comma_list(value(), 1, kUnbounded), true));
  rules.define(value_, rules.choice({object(), array(), string(), number(), rules.literal("true"),
                                     rules.literal("false"), rules.literal("null")}));
}

ExprId JsonParts::space() {
  return quote_ ? rules_->empty() : rules_->rule(space_);
}

ExprId JsonParts::quote_mark() {
  return quote_ ? rules_->token(*quote_) : rules_->literal("\"");
}

ExprId JsonParts::quoted(ExprId characters) {
  return rules_->sequence({quote_mark(), characters, quote_mark()});
}

CharWriter JsonParts::char_writer() const {
  if (!quote_) return write_in_json_string;
  return [](RuleSet& rules, const Set& set) {
    return rules.chars(intersection(set, kText));
  };
}

ExprId JsonParts::any_char() {
  return quote_ ? rules_->chars(normalized(kText)) : any_json_char();
}

ExprId JsonParts::any_json_char() {
  RuleSet& r = *rules_;
  const auto chars = [&](Set set) {
    return r.chars(normalized(std::move(set)));
  };
  const auto hex = [&](int count) {
    return r.repeat(chars({{'0', '9'}, {'A', 'F'}, {'a', 'f'}}), count, count);
  };
  const ExprId d = chars({{'D', 'D'}, {'d', 'd'}});
  const ExprId unpaired = r.choice(
      {r.sequence({chars({{'0', '9'}, {'A', 'C'}, {'a', 'c'}, {'E', 'F'}, {'e', 'f'}}), hex(3)}),
       r.sequence({d, chars({{'0', '7'}}), hex(2)})});
  const ExprId paired = r.sequence({d, chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex(2),
                                    r.literal("\\u"), d, chars({{'C', 'F'}, {'c', 'f'}}), hex(2)});
  Set simple;
  for (const char c : std::string_view("\"\\/bfnrt")) {
    simple.push_back({static_cast<char32_t>(c), static_cast<char32_t>(c)});
  }
  const ExprId escaped =
      r.choice({chars(simple), r.sequence({r.literal("u"), r.choice({unpaired, paired})})});
  return r.choice({chars(kPlain), r.sequence({r.literal("\\"), escaped})});
}

ExprId JsonParts::string() {
  return rules_->sequence({quote_mark(), rules_->rule(string_tail_)});
}

ExprId JsonParts::string(int min, int max) {
  const auto [known, is_new] = strings_.try_emplace({min, max});
  if (is_new) {
    RuleSet::Graph graph;
    graph.edges = {{0, 0, any_char()}};
    graph.ends = {0};
    known->second = rules_->add_counted("string", std::move(graph), min, max, quote_mark());
  }
  return rules_->sequence({quote_mark(), rules_->rule(known->second)});
}

ExprId JsonParts::string_of(std::string_view text) {
  std::string spelled;
  if (quote_) {
    spelled = text;
  } else {
    core::append_json_escaped(text, spelled);
  }
  return quoted(rules_->literal(spelled));
}

ExprId JsonParts::key(std::string_view name) {
  const bool is_bare = quote_ && !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
                         return holds(kBare, static_cast<unsigned char>(c));
                       });
  return is_bare ? rules_->literal(name) : string_of(name);
}

ExprId JsonParts::any_key() {
  if (!quote_) return string();
  return rules_->choice({rules_->repeat(rules_->chars(kBare), 1), string()});
}

core::Result<ExprId> JsonParts::string(const TextSet& texts) {
  TANDEM_ASSIGN(const ExprId body, write_texts(*rules_, texts, char_writer(), quote_mark()));
  return rules_->sequence({quote_mark(), body});
}

core::Result<ExprId> JsonParts::key_matching(TextSet texts) {
  const CharWriter write = [this](RuleSet& rules, const Set& set) {
    return rules.chars(intersection(set, quote_ ? kBare : kPlain));
  };
  if (quote_) {
    texts.min_length = std::max(texts.min_length, 1);
    return write_texts(*rules_, texts, write, std::nullopt);
  }
  TANDEM_ASSIGN(const ExprId key, write_texts(*rules_, texts, write, quote_mark()));
  return rules_->sequence({quote_mark(), key});
}

ExprId JsonParts::enclosed(std::string_view open, ExprId body, bool may_be_empty,
                           std::string_view close) {
  const ExprId content = rules_->sequence({body, space()});
  return rules_->sequence({rules_->literal(open), space(),
                           may_be_empty ? rules_->optional(content) : content,
                           rules_->literal(close)});
}

ExprId JsonParts::comma_list(ExprId item, int min, int max) {
  const ExprId more = rules_->sequence({comma(), item});
  return rules_->sequence(
      {item, rules_->repeat(more, min - 1, max == kUnbounded ? kUnbounded : max - 1)});
}

// ---- numbers ------------------------------------------------------------------------------------

ExprId JsonParts::digit(int first, int last) {
  return rules_->chars({{U'0' + static_cast<char32_t>(first), U'0' + static_cast<char32_t>(last)}});
}

ExprId JsonParts::digits(int min, int max) {
  return rules_->repeat(digit(0, 9), min, max);
}

ExprId JsonParts::integer() {
  return rules_->sequence(
      {rules_->optional(rules_->literal("-")),
       rules_->choice(
           {rules_->literal("0"), rules_->sequence({digit(1, 9), digits(0, kMaxDigits - 1)})})});
}

ExprId JsonParts::number() {
  RuleSet& r = *rules_;
  const ExprId sign = r.optional(r.choice({r.literal("+"), r.literal("-")}));
  const ExprId exponent = r.choice({r.literal("e"), r.literal("E")});
  return r.sequence({integer(), r.optional(r.sequence({r.literal("."), digits(1, kMaxDigits)})),
                     r.optional(r.sequence({exponent, sign, digits(1, 2)}))});
}

}  // namespace tandem::grammar
