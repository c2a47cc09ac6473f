#include "tandem/grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tandem/grammar/char_reader.h"

namespace tandem::grammar {
namespace {

constexpr int kMaxNesting = 100;
constexpr std::size_t kMaxRules = 2048;

bool is_name_char(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class GbnfReader {
 public:
  explicit GbnfReader(std::string_view text) : text_(text), in_(text) {}

  core::Result<RuleSet> read() {
    skip_space(true);
    while (!in_.at_end()) {
      TANDEM_TRY(read_rule());
      skip_space(true);
    }
    for (const auto& [name, rule] : names_) {
      if (rules_.definition(rule) < 0) {
        return core::invalid_argument(
            fmt::format("the grammar uses the rule \"{}\" without defining it", name));
      }
    }
    const auto root = names_.find("root");
    if (root == names_.end()) {
      return core::invalid_argument("the grammar has no rule named root, where it would begin");
    }
    rules_.set_root(root->second);
    return std::move(rules_);
  }

 private:
  core::Status fail(std::string_view what) const {
    const auto line = std::count(text_.begin(),
                                 text_.begin() + static_cast<std::ptrdiff_t>(in_.position()), '\n');
    return core::invalid_argument(fmt::format("line {} of the grammar: {}", line + 1, what));
  }

  void skip_space(bool with_newlines) {
    for (;;) {
      const char32_t c = in_.peek();
      if (c == '#') {
        while (!in_.at_end() && in_.peek() != '\n' && in_.peek() != '\r') in_.take();
      } else if (c == ' ' || c == '\t' || (with_newlines && (c == '\n' || c == '\r'))) {
        in_.take();
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    std::string name;
    while (is_name_char(in_.peek())) name.push_back(static_cast<char>(in_.take()));
    return name;
  }

  RuleId rule_named(const std::string& name) {
    const auto it = names_.find(name);
    if (it != names_.end()) return it->second;
    const RuleId rule = rules_.declare(name);
    names_.emplace(name, rule);
    return rule;
  }

  core::Status read_rule() {
    const std::string name = read_name();
    if (name.empty()) return fail("a rule must begin with its name");
    if (names_.size() > kMaxRules) return fail(fmt::format("more than {} rules", kMaxRules));
    skip_space(false);
    if (!in_.skip("::=")) return fail(fmt::format("expected ::= after the name \"{}\"", name));
    skip_space(true);
    const RuleId rule = rule_named(name);
    if (rules_.definition(rule) >= 0) {
      return fail(fmt::format("the rule \"{}\" is defined twice", name));
    }
    TANDEM_ASSIGN(const ExprId expr, read_choice(0));
    rules_.define(rule, expr);
    if (!in_.at_end() && in_.peek() != '\n' && in_.peek() != '\r') {
      return fail("expected a new line after the rule");
    }
    return {};
  }

  core::Result<ExprId> read_choice(int depth) {
    if (depth > kMaxNesting) {
      return fail(fmt::format("groups are nested more than {} deep", kMaxNesting));
    }
    std::vector<ExprId> parts;
    do {
      skip_space(true);
      TANDEM_ASSIGN(const ExprId part, read_sequence(depth));
      parts.push_back(part);
    } while (in_.skip(U'|'));
    return rules_.choice(parts);
  }

  core::Result<ExprId> read_sequence(int depth) {
    std::vector<ExprId> parts;
    for (;;) {
      skip_space(depth > 0);
      const char32_t c = in_.peek();
      if (c == kEndOfText || c == '|' || c == ')' || c == '\n' || c == '\r') break;
      TANDEM_ASSIGN(ExprId part, read_item(depth));
      skip_space(depth > 0);
      TANDEM_ASSIGN(part, read_repetitions(part));
      parts.push_back(part);
    }
    return parts.empty() ? rules_.empty() : rules_.sequence(parts);
  }

  core::Result<ExprId> read_item(int depth) {
    const char32_t c = in_.peek();
    if (c == '"') return read_literal();
    if (c == '[') return read_class();
    if (in_.skip(U'.')) return rules_.any_char();
    if (in_.skip(U'(')) {
      TANDEM_ASSIGN(const ExprId group, read_choice(depth + 1));
      if (!in_.skip(U')')) return fail("a group is not closed with )");
      return group;
    }
    if (is_name_char(c)) return rules_.rule(rule_named(read_name()));
    return fail("expected a \"literal\", a [class], a (group), a name or .");
  }

  core::Result<ExprId> read_repetitions(ExprId part) {
    for (;;) {
      if (in_.skip(U'*')) {
        part = rules_.repeat(part, 0);
      } else if (in_.skip(U'+')) {
        part = rules_.repeat(part, 1);
      } else if (in_.skip(U'?')) {
        part = rules_.optional(part);
      } else if (in_.skip(U'{')) {
        TANDEM_ASSIGN(part, read_counts(part));
      } else {
        return part;
      }
      skip_space(false);
    }
  }

  core::Result<ExprId> read_counts(ExprId part) {
    skip_space(false);
    const auto min = in_.take_count();
    if (!min) return fail("expected a number after {");
    skip_space(false);
    int max = *min;
    if (in_.skip(U',')) {
      skip_space(false);
      max = in_.take_count().value_or(kUnbounded);
      skip_space(false);
    }
    if (!in_.skip(U'}')) return fail("a repetition is not closed with }");
    if (max != kUnbounded && max < *min) return fail("a repetition ends below its beginning");
    return rules_.repeat(part, *min, max);
  }

  /// A character of a literal or class, escapes resolved.
  core::Result<char32_t> read_char() {
    const char32_t c = in_.take();
    if (c == kEndOfText) return fail("a literal or class is not closed");
    if (c != '\\') return c;
    const char32_t escaped = in_.take();
    switch (escaped) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'x':
      case 'u':
      case 'U': {
        const auto value = in_.take_hex(escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8);
        if (!value || *value > 0x10FFFF || (*value >= 0xD800 && *value <= 0xDFFF)) {
          return fail("an escape does not name a character");
        }
        return *value;
      }
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
        return escaped;
      default:
        return fail("an unknown escape; known are \\n \\r \\t \\x \\u \\U \\\" \\\\ \\[ \\]");
    }
  }

  core::Result<ExprId> read_literal() {
    in_.take();
    std::string bytes;
    while (!in_.skip(U'"')) {
      TANDEM_ASSIGN(const char32_t c, read_char());
      core::append_utf8(c, bytes);
    }
    return rules_.literal(bytes);
  }

  core::Result<ExprId> read_class() {
    in_.take();
    const bool is_negated = in_.skip(U'^');
    std::vector<CodePoints> set;
    while (!in_.skip(U']')) {
      TANDEM_ASSIGN(const char32_t first, read_char());
      char32_t last = first;
      const CharReader before = in_;
      if (in_.skip(U'-')) {
        if (in_.peek() == ']') {
          in_ = before;  // a hyphen at the end stands for itself
        } else {
          TANDEM_ASSIGN(last, read_char());
        }
      }
      if (last < first) return fail("a range of a class ends below its beginning");
      set.push_back({first, last});
    }
    return rules_.chars(normalized(std::move(set), is_negated));
  }

  std::string_view text_;
  CharReader in_;
  RuleSet rules_;
  std::map<std::string, RuleId> names_;
};

}  // namespace

core::Result<RuleSet> read_gbnf(std::string_view text) {
  return GbnfReader(text).read();
}

}  // namespace tandem::grammar
