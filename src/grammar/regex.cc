#include "tandem/grammar/regex.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "tandem/grammar/char_reader.h"

namespace tandem::grammar {
namespace {

using Set = std::vector<CodePoints>;

constexpr int kMaxNesting = 100;

const Set kDigits = {{'0', '9'}};
const Set kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Set kAsciiSpaces = {{'\t', '\r'}, {' ', ' '}};
/// ECMA-262 WhiteSpace and LineTerminator.
const Set kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                     {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                     {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/// The set of a class escape \d \D \w \W \s \S, if it is one. to_exclude: it names what is left
/// out, so that it must hold all spaces.
std::optional<Set> class_of_escape(char32_t c, bool to_exclude = false) {
  switch (c) {
    case 'd':
      return kDigits;
    case 'D':
      return normalized(kDigits, true);
    case 'w':
      return kWord;
    case 'W':
      return normalized(kWord, true);
    case 's':
      return to_exclude ? kSpaces : kAsciiSpaces;
    case 'S':
      return normalized(kSpaces, true);
    default:
      return std::nullopt;
  }
}

class RegexReader {
 public:
  RegexReader(RuleSet& rules, std::string_view pattern, bool must_match_all,
              const CharWriter& write)
      : rules_(rules), in_(pattern), must_match_all_(must_match_all), write_(write) {}

  core::Result<ExprId> read() {
    TANDEM_ASSIGN(const ExprId expr, read_choice(0));
    if (!in_.at_end()) return fail("a ) without its (");
    return expr;
  }

 private:
  core::Status fail(std::string_view what) const {
    return core::invalid_argument(fmt::format("the pattern, at byte {}: {}", in_.position(), what));
  }

  ExprId anything() { return rules_.repeat(write_(rules_, normalized({}, true)), 0); }

  core::Result<ExprId> read_choice(int depth) {
    if (depth > kMaxNesting) {
      return fail(fmt::format("groups are nested more than {} deep", kMaxNesting));
    }
    std::vector<ExprId> parts;
    do {
      TANDEM_ASSIGN(const ExprId part, read_sequence(depth));
      parts.push_back(part);
    } while (in_.skip(U'|'));
    return rules_.choice(parts);
  }

  core::Result<ExprId> read_sequence(int depth) {
    std::vector<ExprId> parts;
    const bool is_open = depth == 0 && !must_match_all_;
    const bool has_start = depth == 0 && in_.skip(U'^');
    if (is_open && !has_start) parts.push_back(anything());
    bool has_end = false;
    for (;;) {
      const char32_t c = in_.peek();
      if (c == kEndOfText || c == '|' || c == ')') break;
      if (has_end) return fail("$ is supported at the end of the whole pattern only");
      if (depth == 0 && in_.skip(U'$')) {
        has_end = true;
        continue;
      }
      TANDEM_ASSIGN(const ExprId atom, read_atom(depth));
      TANDEM_ASSIGN(const ExprId part, read_quantifier(atom));
      parts.push_back(part);
    }
    if (is_open && !has_end) parts.push_back(anything());
    return parts.empty() ? rules_.empty() : rules_.sequence(parts);
  }

  core::Result<ExprId> read_atom(int depth) {
    const char32_t c = in_.take();
    switch (c) {
      case '(':
        return read_group(depth);
      case '[':
        return read_class();
      case '.':
        return write_(rules_, normalized(kLineEnds, true));
      case '\\':
        return read_escape();
      case '^':
      case '$':
        return fail("^ and $ are supported at the ends of the whole pattern only");
      case '*':
      case '+':
      case '?':
        return fail("a repetition of nothing");
      default:
        return write_(rules_, {{c, c}});
    }
  }

  core::Result<ExprId> read_group(int depth) {
    if (in_.skip(U'?')) {
      const bool is_named =
          in_.skip("P<") || (in_.skip(U'<') && in_.peek() != '=' && in_.peek() != '!');
      if (is_named) {
        while (!in_.at_end() && in_.peek() != '>') in_.take();
        if (!in_.skip(U'>')) return fail("a group's name is not closed");
      } else if (!in_.skip(U':')) {
        return fail("look-around and flags are not supported");
      }
    }
    TANDEM_ASSIGN(const ExprId group, read_choice(depth + 1));
    if (!in_.skip(U')')) return fail("a group is not closed with )");
    return group;
  }

  core::Result<ExprId> read_quantifier(ExprId atom) {
    int min = 0, max = kUnbounded;
    if (in_.skip(U'+')) {
      min = 1;
    } else if (in_.skip(U'?')) {
      max = 1;
    } else if (in_.skip(U'{')) {
      const auto first = in_.take_count();
      min = first.value_or(0);
      max = min;
      if (in_.skip(U',')) {
        max = in_.take_count().value_or(kUnbounded);
      } else if (!first) {
        return fail("expected a number after {; write \\{ for a brace");
      }
      if (!in_.skip(U'}')) return fail("a repetition is not closed with }");
      if (max != kUnbounded && max < min) return fail("a repetition ends below its beginning");
    } else if (!in_.skip(U'*')) {
      return atom;
    }
    in_.skip(U'?');  // lazy: the same texts
    const char32_t next = in_.peek();
    if (next == '*' || next == '+' || next == '?' || next == '{') {
      return fail("a repetition of a repetition; put the first one in a group");
    }
    return rules_.repeat(atom, min, max);
  }

  core::Result<ExprId> read_escape() {
    if (const auto set = class_of_escape(in_.peek())) {
      in_.take();
      return write_(rules_, *set);
    }
    TANDEM_ASSIGN(const char32_t c, read_escaped_char(false));
    return write_(rules_, {{c, c}});
  }

  /// The character after a backslash.
  core::Result<char32_t> read_escaped_char(bool in_class) {
    const char32_t c = in_.take();
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'v':
        return U'\v';
      case 'f':
        return U'\f';
      case '0':
        return U'\0';
      case 'b':
        if (in_class) return U'\b';
        break;
      case 'x':
      case 'u':
        return read_hex(c);
      case kEndOfText:
        return fail("a backslash at the end");
      default:
        break;
    }
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter || (c >= '1' && c <= '9')) {
      return fail("this escape is not supported (no back-references, word borders or properties)");
    }
    return c;
  }

  core::Result<char32_t> read_hex(char32_t kind) {
    std::optional<char32_t> value;
    if (kind == 'u' && in_.skip(U'{')) {
      char32_t sum = 0;
      bool is_good = in_.peek() != '}';
      while (is_good && in_.peek() != '}') {
        const auto digit = in_.take_hex(1);
        is_good = digit && sum <= 0x10FFFF;
        if (is_good) sum = sum * 16 + *digit;
      }
      if (is_good && in_.skip(U'}')) value = sum;
    } else {
      value = in_.take_hex(kind == 'x' ? 2 : 4);
    }
    if (!value || *value > 0x10FFFF) return fail("an escape does not name a character");
    if (*value >= 0xD800 && *value <= 0xDBFF && in_.skip("\\u")) {
      const auto low = in_.take_hex(4);
      if (!low || *low < 0xDC00 || *low > 0xDFFF) return fail("half of a surrogate pair");
      return 0x10000 + ((*value - 0xD800) << 10) + (*low - 0xDC00);
    }
    return *value;
  }

  core::Result<ExprId> read_class() {
    const bool is_negated = in_.skip(U'^');
    Set set;
    while (!in_.skip(U']')) {
      const std::size_t num_before = set.size();
      TANDEM_ASSIGN(const auto first, read_class_item(set, is_negated));
      const CharReader before = in_;
      if (!first || !in_.skip(U'-')) continue;
      if (in_.peek() == ']') {
        in_ = before;  // a hyphen at the end stands for itself
        continue;
      }
      TANDEM_ASSIGN(const auto last, read_class_item(set, is_negated));
      if (!last || *last < *first) return fail("a range of a class ends below its beginning");
      set.resize(num_before);
      set.push_back({*first, *last});
    }
    return write_(rules_, normalized(std::move(set), is_negated));
  }

  /// Adds one item to the set; the character if it is one.
  core::Result<std::optional<char32_t>> read_class_item(Set& set, bool is_negated) {
    char32_t c = in_.take();
    if (c == kEndOfText) return fail("a class is not closed with ]");
    if (c == '\\') {
      if (const auto escaped = class_of_escape(in_.peek(), is_negated)) {
        in_.take();
        set.insert(set.end(), escaped->begin(), escaped->end());
        return std::optional<char32_t>();
      }
      TANDEM_ASSIGN(c, read_escaped_char(true));
    }
    set.push_back({c, c});
    return std::optional<char32_t>(c);
  }

  RuleSet& rules_;
  CharReader in_;
  bool must_match_all_;
  const CharWriter& write_;
};

}  // namespace

core::Result<ExprId> read_regex(RuleSet& rules, std::string_view pattern, bool must_match_all,
                                const CharWriter& write) {
  return RegexReader(rules, pattern, must_match_all, write).read();
}

ExprId write_plain(RuleSet& rules, const std::vector<CodePoints>& set) {
  return rules.chars(normalized(set));
}

}  // namespace tandem::grammar
