#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

/// Looks for stop strings in text that comes in pieces. Text that could still become a stop string
/// is held back; the output ends before the stop string that is complete first (of those that end
/// at the same byte, before the longest). The result does not depend on how the text is cut.
/// Thread: one.
class StopFilter {
 public:
  /// stops: not empty strings, each starting with a whole UTF-8 character.
  explicit StopFilter(std::vector<std::string> stops);

  /// Text that is certain now. After a stop string was found, nothing more comes.
  std::string push(std::string_view text);
  /// At the end of the output: the text held back, since no stop string can follow.
  std::string flush();

  bool found() const { return found_; }

 private:
  struct Matcher {
    std::string stop;
    std::vector<std::size_t> fallback;  // Knuth-Morris-Pratt: border length by prefix length - 1
    std::size_t matched = 0;            // longest prefix of `stop` that the text ends with
  };
  static void advance(Matcher& matcher, char byte);

  std::vector<Matcher> matchers_;
  std::string held_;
  bool found_ = false;
};

}  // namespace tandem::engine
