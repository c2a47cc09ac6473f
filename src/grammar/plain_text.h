#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tandem/grammar/automaton.h"
#include "tandem/grammar/pushdown.h"

namespace tandem::grammar {

// Plain text: the characters that a JSON string holds without an escape, U+0020 and above but for "
// and \, and that no pattern's dot leaves out, U+2028 and U+2029. Nearly all tokens are plain, and
// within strings and free text a grammar tells them apart by their length at most.

/// Characters of a plain text; -1 where it is none.
int count_plain(std::string_view text);

/// Which plain texts the states of an automaton can read. Thread: one.
class PlainText {
 public:
  /// `automaton` must outlive it.
  explicit PlainText(const Automaton& automaton);

  /// From this state on, and with so many parts counted, exactly the plain texts of at most so many
  /// characters can be read within the rule, and it ends after none of them; `most` where there is
  /// no such bound below. Nothing where other things matter than their length.
  std::optional<int> most_characters(const Thread& thread, int most);

 private:
  static constexpr std::size_t kMaxStates = 16;

  /// A byte of a character: the bytes that lead from one place within it to another, by class.
  struct Edge {
    std::uint8_t from = 0, to = 0;
    std::vector<std::uint8_t> classes;
  };
  enum class Step : std::uint8_t { kAll, kNone, kSome };

  /// Characters that may come before too many parts would, if that is the same in all of states_.
  std::optional<int> most_counted(const Thread& thread, int most) const;

  /// Whether all characters, or none, can be read in all of states_; then states_ are those after
  /// one.
  Step step();
  bool is_inside(std::int32_t state);
  /// Whether a rule reads exactly one plain character, as far as plain text goes.
  bool reads_character(RuleId rule);
  bool find_character(RuleId rule) const;
  /// The state after a plain character where a called rule reads it and there is no other way; -1
  /// elsewhere.
  std::int32_t after_call(std::int32_t state);
  /// One more state after a character. False: it is not inside.
  bool add_next(std::int32_t state);

  const Automaton* automaton_;
  std::vector<Edge> edges_;
  std::unordered_map<RuleId, bool> reads_character_;
  std::vector<std::int32_t> states_, next_;
  std::vector<std::pair<std::int32_t, std::uint8_t>> todo_;  // scratch of step()
};

}  // namespace tandem::grammar
