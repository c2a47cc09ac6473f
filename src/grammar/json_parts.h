#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/grammar/regex.h"
#include "tandem/grammar/rule_set.h"
#include "tandem/grammar/text_set.h"

namespace tandem::grammar {

/// The pieces of JSON as expressions of a rule set. Where JSON allows white space, they allow a
/// space, or a new line with an indentation, so that no text can be white space for ever.
///
/// With a quote token they are those of a call as Gemma 4 writes it: no white space, strings
/// between quote tokens without escapes, keys of letters and digits bare. `rules` must outlive the
/// parts. Thread: one.
class JsonParts {
 public:
  explicit JsonParts(RuleSet& rules, std::optional<TokenId> quote = std::nullopt);

  bool is_call() const { return quote_.has_value(); }
  ExprId space();  ///< white space or none
  ExprId comma() { return rules_->sequence({rules_->literal(","), space()}); }
  ExprId value() { return rules_->rule(value_); }    ///< any value
  ExprId object() { return rules_->rule(object_); }  ///< any object
  ExprId array() { return rules_->rule(array_); }    ///< any array
  /// Numbers of at most 18 digits before and behind the point and two of an exponent: any reader's
  /// double holds them, and no text can be digits for ever.
  ExprId number();
  ExprId integer();
  ExprId string();  ///< any string
  /// A string of min to max characters (kUnbounded: no end).
  ExprId string(int min, int max);
  /// A string of the set. Errors as write_texts() has them.
  core::Result<ExprId> string(const TextSet& texts);
  /// The one string of these bytes (UTF-8).
  ExprId string_of(std::string_view text);
  /// A string of these characters, which char_writer() has spelled.
  ExprId quoted(ExprId characters);
  /// One character of a set as strings spell it.
  CharWriter char_writer() const;

  ExprId key(std::string_view name);
  ExprId any_key();
  /// A key among these texts that is spelled without escapes, and bare in a call. Errors as
  /// write_texts() has them.
  core::Result<ExprId> key_matching(TextSet texts);

  /// { pairs } with white space; body: at least one pair.
  ExprId braces(ExprId body, bool may_be_empty) { return enclosed("{", body, may_be_empty, "}"); }
  ExprId brackets(ExprId body, bool may_be_empty) { return enclosed("[", body, may_be_empty, "]"); }
  ExprId pair(ExprId key, ExprId value) {
    return rules_->sequence({key, rules_->literal(":"), space(), value});
  }
  /// min to max (kUnbounded: no end) times `item`, with commas; min at least 1.
  ExprId comma_list(ExprId item, int min, int max);

 private:
  ExprId enclosed(std::string_view open, ExprId body, bool may_be_empty, std::string_view close);
  ExprId quote_mark();
  ExprId any_char();
  ExprId any_json_char();
  ExprId digits(int min, int max);
  ExprId digit(int first, int last);

  RuleSet* rules_;
  std::optional<TokenId> quote_;
  std::map<std::pair<int, int>, RuleId> strings_;  // by the lengths that they may have
  RuleId space_ = 0, string_tail_ = 0, value_ = 0, object_ = 0, array_ = 0;
};

/// A CharWriter: characters as they are spelled in a JSON string, escaped only where they must be.
ExprId write_in_json_string(RuleSet& rules, const std::vector<CodePoints>& set);

}  // namespace tandem::grammar
