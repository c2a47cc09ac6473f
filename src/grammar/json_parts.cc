#include "tandem/grammar/json_parts.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tandem/core/json_escape.h"
#include "tandem/grammar/char_reader.h"

namespace tandem::grammar {
namespace {

constexpr int kMaxIndentation = 20;
constexpr int kMaxDigits = 18;
constexpr int kMaxBeginning = 64;
/// Bounds beyond this are as good as none: 10^18.
constexpr double kLargest = 1e18;

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

std::uint64_t power_of_ten(int exponent) {
  std::uint64_t power = 1;
  while (exponent-- > 0) power *= 10;
  return power;
}

int num_digits(std::uint64_t value) {
  int digits = 1;
  while (value >= 10) {
    value /= 10;
    ++digits;
  }
  return digits;
}

}  // namespace

ExprId write_in_json_string(RuleSet& rules, const Set& set) {
  std::vector<ExprId> parts = {rules.chars(intersection(set, kPlain))};
  const auto add_escape = [&](char32_t c) {
    if (!holds(set, c)) return;
    const char byte = static_cast<char>(c);
    std::string escaped;
    core::append_json_escaped({&byte, 1}, escaped);
    parts.push_back(rules.literal(escaped));
  };
  for (char32_t c = 0; c < 0x20; ++c) add_escape(c);
  add_escape('"');
  add_escape('\\');
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
  char_ = rules.add_rule("char", any_char());
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
    const int length = std::max(min, max);
    // Before `min` characters a called rule is all that may come, whose masks depend on its
    // callers.
    const bool is_spelled = length <= (min > 0 ? lengths_left_ : std::min(lengths_left_, kSpelled));
    if (is_spelled) lengths_left_ -= length;
    const ExprId one = is_spelled ? any_char() : rules_->rule(char_);
    known->second =
        rules_->add_rule("string", rules_->sequence({rules_->repeat(one, min, max), quote_mark()}));
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

ExprId JsonParts::key_other_than(const std::vector<std::string>& names) {
  const Set& plain = quote_ ? kBare : kPlain;
  const std::string_view mark = quote_ ? "" : "\"";
  // By the longest common beginning with one of the names: another character follows it, or the end
  // where it is no name itself.
  // Whatever begins like the first characters of a long name is left out.
  std::set<std::string> beginnings = {""}, cut;
  const std::set<std::string> whole(names.begin(), names.end());
  for (const std::string& name : names) {
    int length = 0;
    for (CharReader in(name); !in.at_end() && holds(plain, in.peek());) {
      in.take();
      beginnings.insert(name.substr(0, in.position()));
      if (++length == kMaxBeginning) {
        cut.insert(name.substr(0, in.position()));
        break;
      }
    }
  }
  const ExprId rest =
      rules_->sequence({rules_->repeat(rules_->chars(plain), 0), rules_->literal(mark)});
  std::vector<ExprId> parts;
  for (const std::string& beginning : beginnings) {
    if (cut.contains(beginning)) continue;
    Set taken;
    for (auto it = beginnings.upper_bound(beginning);
         it != beginnings.end() && it->starts_with(beginning); ++it) {
      const char32_t next = CharReader(std::string_view(*it).substr(beginning.size())).peek();
      taken.push_back({next, next});
    }
    const Set others = intersection(normalized(std::move(taken), true), plain);
    std::vector<ExprId> ways = {rules_->sequence({rules_->chars(others), rest})};
    const bool may_end = !whole.contains(beginning) && !(quote_ && beginning.empty());
    if (may_end) ways.push_back(rules_->literal(mark));
    parts.push_back(
        rules_->sequence({rules_->literal(std::string(mark) + beginning), rules_->choice(ways)}));
  }
  return rules_->choice(parts);
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

/// Numbers of `size` digits: where the ends differ in a digit before the last, what lies below and
/// above the whole blocks of ten between is cut off.
ExprId JsonParts::natural_of_size(std::uint64_t min, std::uint64_t max, int size) {
  std::vector<ExprId> parts;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pending = {{min, max}};
  while (!pending.empty()) {
    const auto [low, high] = pending.back();
    pending.pop_back();
    bool is_cut = false;
    for (int i = 1; i < size && !is_cut; ++i) {
      const std::uint64_t block = power_of_ten(i);
      if (low / block == high / block) continue;
      if (low % block != 0) {
        const std::uint64_t next = (low / block + 1) * block;
        pending.push_back({next, high});
        pending.push_back({low, next - 1});
        is_cut = true;
      } else if (high % block != block - 1) {
        const std::uint64_t last = high / block * block;
        pending.push_back({last, high});
        pending.push_back({low, last - 1});
        is_cut = true;
      }
    }
    if (is_cut) continue;
    std::vector<ExprId> sequence;
    for (int i = size; i-- > 0;) {
      const std::uint64_t unit = power_of_ten(i);
      sequence.push_back(
          digit(static_cast<int>(low / unit % 10), static_cast<int>(high / unit % 10)));
    }
    parts.push_back(rules_->sequence(sequence));
  }
  return rules_->choice(parts);
}

ExprId JsonParts::natural(std::uint64_t min, std::optional<std::uint64_t> max) {
  std::vector<ExprId> parts;
  const int last_size = max ? num_digits(*max) : num_digits(min);
  for (int size = num_digits(min); size <= last_size; ++size) {
    const std::uint64_t smallest = size == 1 ? 0 : power_of_ten(size - 1);
    std::uint64_t largest = power_of_ten(size) - 1;
    if (max) largest = std::min(largest, *max);
    const std::uint64_t first = std::max(min, smallest);
    if (first <= largest) parts.push_back(natural_of_size(first, largest, size));
  }
  if (!max && last_size < kMaxDigits) {
    parts.push_back(rules_->sequence({digit(1, 9), digits(last_size, kMaxDigits - 1)}));
  }
  return rules_->choice(parts);
}

ExprId JsonParts::integer(const NumberBounds& b) {
  const double first = b.is_min_excluded ? std::floor(b.min) + 1 : std::ceil(b.min);
  const double last = b.is_max_excluded ? std::ceil(b.max) - 1 : std::floor(b.max);
  if (first > last || first > kLargest || last < -kLargest) return rules_->nothing();
  const auto limit = [](double value) -> std::optional<std::uint64_t> {
    if (value > kLargest) return std::nullopt;
    return static_cast<std::uint64_t>(value);
  };
  std::vector<ExprId> parts;
  if (last >= 0) {
    parts.push_back(natural(static_cast<std::uint64_t>(std::max(first, 0.0)), limit(last)));
  }
  if (first < 0) {
    const auto smallest = static_cast<std::uint64_t>(std::max(-last, 1.0));
    const auto largest = limit(-first);
    if (!largest || smallest <= *largest) {
      parts.push_back(rules_->sequence({rules_->literal("-"), natural(smallest, largest)}));
    }
  }
  return rules_->choice(parts);
}

/// Numbers from 0 within the bounds.
ExprId JsonParts::positive(const NumberBounds& b) {
  std::vector<ExprId> parts;
  NumberBounds from_zero = b;
  if (b.min < 0) {
    from_zero.min = 0;
    from_zero.is_min_excluded = false;
  }
  const double min = from_zero.min;
  parts.push_back(integer(from_zero));
  // n.f for all f: n is not below the smallest, and n + 1 not above the largest. n itself may be
  // excluded: then f must not be all zeros.
  NumberBounds with_fraction;
  with_fraction.min = std::ceil(min);
  with_fraction.max = std::floor(b.max) - 1;
  const bool is_first_excluded = from_zero.is_min_excluded && std::ceil(min) == min;
  if (is_first_excluded) {
    if (min + 1 <= b.max && min < kLargest) {
      NumberBounds first;
      first.min = first.max = min;
      parts.push_back(rules_->sequence({integer(first), rules_->literal("."),
                                        rules_->repeat(digit(0, 0), 0, kMaxDigits), digit(1, 9),
                                        digits(0, kMaxDigits)}));
    }
    with_fraction.min += 1;
  }
  if (with_fraction.min <= with_fraction.max) {
    parts.push_back(
        rules_->sequence({integer(with_fraction), rules_->literal("."), digits(1, kMaxDigits)}));
  }
  return rules_->choice(parts);
}

ExprId JsonParts::number(const NumberBounds& b) {
  std::vector<ExprId> parts;
  if (b.max >= 0) parts.push_back(positive(b));
  if (b.min < 0) {
    const NumberBounds mirrored = {-b.max, -b.min, b.is_max_excluded, b.is_min_excluded};
    parts.push_back(rules_->sequence({rules_->literal("-"), positive(mirrored)}));
  }
  return rules_->choice(parts);
}

}  // namespace tandem::grammar
