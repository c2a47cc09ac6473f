// Strings under patterns, lengths and excluded values together, against std::regex: the grammar
// allows exactly those.

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "grammar_rig.h"
#include "tandem/grammar/char_automaton.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

class TextCase {
 public:
  explicit TextCase(unsigned seed) : random_(seed) {
    for (int i = pick(3); i >= 0; --i) patterns_.push_back({any_pattern(0), pick(3) == 0});
    if (pick(2) == 0) min_ = pick(4);
    if (pick(2) == 0) max_ = min_ + pick(5);
    for (int i = pick(4); i > 0; --i) holes_.push_back(any_text());
  }

  json::value schema() const {
    json::array all;
    for (const auto& [regex, is_denied] : patterns_) {
      const json::value pattern = {{"pattern", regex}};
      all.push_back(is_denied ? json::value{{"not", pattern}} : pattern);
    }
    json::object out = {{"type", "string"}, {"minLength", min_}, {"allOf", all}};
    if (max_ >= 0) out["maxLength"] = max_;
    if (!holes_.empty()) out["not"] = {{"enum", json::array(holes_.begin(), holes_.end())}};
    return out;
  }

  bool allows(const std::string& text) const {
    const auto length = static_cast<int>(text.size());
    if (length < min_ || (max_ >= 0 && length > max_)) return false;
    if (std::find(holes_.begin(), holes_.end(), text) != holes_.end()) return false;
    for (const auto& [regex, is_denied] : patterns_) {
      if (std::regex_search(text, std::regex(regex)) == is_denied) return false;
    }
    return true;
  }

  std::string any_text() {
    std::string text;
    for (int i = pick(8); i > 0; --i) text += "abc\"\\1"[pick(6)];
    return text;
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  std::string any_atom(int depth) {
    static const char* const kAtoms[] = {"a", "b", "[ab]", "[^a]", "c", "\\d", "[b-c]"};
    return depth < 2 && pick(4) == 0 ? "(" + any_pattern(depth + 1) + ")" : kAtoms[pick(7)];
  }

  std::string any_pattern(int depth) {
    static const char* const kRepeats[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}"};
    std::string out = depth == 0 && pick(3) == 0 ? "^" : "";
    for (int i = pick(3); i >= 0; --i) out += any_atom(depth) + kRepeats[pick(8)];
    if (depth == 0 && pick(3) == 0) return out + "$";
    return pick(5) == 0 && depth > 0 ? out + "|" + any_atom(depth) : out;
  }

  std::mt19937 random_;
  std::vector<std::pair<std::string, bool>> patterns_;  // and whether it must not match
  std::vector<std::string> holes_;
  int min_ = 0, max_ = -1;
};

TEST(TextProperty, ExactlyTheTextsOfASetAreAllowed) {
  int num_allowed = 0, num_refused = 0;
  for (unsigned seed = 0; seed < 250; ++seed) {
    TextCase text_case(seed);
    const std::string schema = json::serialize(text_case.schema());
    SCOPED_TRACE(schema);
    const auto grammar =
        testing::compiler().compile(testing::source(Source::Kind::kJsonSchema, schema));
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().message(), "no text matches the grammar");
    }
    for (int i = 0; i < 120; ++i) {
      const std::string text = text_case.any_text();
      const bool is_allowed = text_case.allows(text);
      (is_allowed ? num_allowed : num_refused) += 1;
      const std::string spelled = json::serialize(json::value(text));
      EXPECT_EQ(grammar.ok() && testing::matches(*grammar, testing::byte_tokens(spelled)),
                is_allowed)
          << text;
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_allowed, 3'000);
  EXPECT_GT(num_refused, 3'000);
}

TEST(CharAutomaton, MatchesCharactersAndNotBytes) {
  const auto matches = [](const char* pattern, std::string_view text) {
    auto automaton = CharAutomaton::create(pattern, true);
    EXPECT_TRUE(automaton.ok());
    return automaton->matches(text);
  };
  EXPECT_TRUE(matches(".{2}", "\xC3\xA9\xE6\x97\xA5"));
  EXPECT_TRUE(matches("[^a]{0,3}", ""));
  EXPECT_FALSE(matches("(ab){2,}", "ab"));
  EXPECT_TRUE(matches("(ab){2,}", "ababab"));
  EXPECT_FALSE(CharAutomaton::create("(a", true).ok());
  EXPECT_FALSE(CharAutomaton::create("((a{100}){100}){100}", true).ok());
}

}  // namespace
}  // namespace tandem::grammar
