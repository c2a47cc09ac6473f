// Numbers under bounds, steps and excluded values, against integers of units of 10^-9: the grammar
// allows exactly those of the form that write_numbers() promises.

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "grammar_rig.h"
#include "schema_validator.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;
using Units = __int128;  // of 10^-9
constexpr int kPlaces = 9;

/// The value of a number without an exponent and of at most nine digits behind its point.
Units units_of(const std::string& text) {
  Units value = 0;
  int num_fraction = -1;
  for (const char c : text) {
    if (c == '.') num_fraction = 0;
    if (c < '0' || c > '9') continue;
    value = value * 10 + (c - '0');
    num_fraction += num_fraction >= 0 ? 1 : 0;
  }
  for (int i = std::max(num_fraction, 0); i < kPlaces; ++i) value *= 10;
  return text[0] == '-' ? -value : value;
}

/// The number of so many units of 10^-places.
std::string decimal(long long value, int places) {
  std::string digits = std::to_string(value < 0 ? -value : value);
  while (static_cast<int>(digits.size()) <= places) digits = "0" + digits;
  if (places > 0) digits.insert(digits.size() - static_cast<std::size_t>(places), ".");
  return (value < 0 ? "-" : "") + digits;
}

class NumberCase {
 public:
  explicit NumberCase(unsigned seed) : random_(seed) {
    is_integer_ = pick(4) == 0;
    if (pick(4) != 0) min_ = any_bound();
    if (pick(4) != 0) max_ = any_bound();
    if (min_ && max_ && units_of(*min_) > units_of(*max_)) std::swap(min_, max_);
    is_min_excluded_ = pick(2) == 0;
    is_max_excluded_ = pick(2) == 0;
    if (pick(3) == 0) {
      static const char* const kSteps[] = {"3", "0.5", "0.01", "7", "0.25", "60", "1.5", "86400"};
      steps_.push_back(kSteps[pick(8)]);
    }
    for (int i = pick(3); i-- > 0;) holes_.push_back(any_bound());
  }

  std::string schema() const {
    std::string out = is_integer_ ? R"({"type":"integer")" : R"({"type":"number")";
    if (min_) out += (is_min_excluded_ ? ",\"exclusiveMinimum\":" : ",\"minimum\":") + *min_;
    if (max_) out += (is_max_excluded_ ? ",\"exclusiveMaximum\":" : ",\"maximum\":") + *max_;
    for (const std::string& step : steps_) out += ",\"multipleOf\":" + step;
    std::string list;
    for (const std::string& hole : holes_) list += (list.empty() ? "" : ",") + hole;
    return out + (list.empty() ? "}" : ",\"not\":{\"enum\":[" + list + "]}}");
  }

  bool says_something() const { return min_ || max_ || !steps_.empty() || !holes_.empty(); }

  bool allows(const std::string& text) const {
    static const std::regex kForm("-?(0|[1-9][0-9]*)(\\.[0-9]+)?");
    if (!std::regex_match(text, kForm)) return false;
    const bool has_point = text.find('.') != std::string::npos;
    auto num_digits = static_cast<int>(text.size()) - (text[0] == '-') - has_point;
    if (text.starts_with("0") || text.starts_with("-0")) --num_digits;
    if (has_point ? is_integer_ || num_digits > 15 : num_digits > 18) return false;
    const Units value = units_of(text);
    if (value == 0 && text[0] == '-') return false;
    if (min_ && (value < units_of(*min_) || (is_min_excluded_ && value == units_of(*min_)))) {
      return false;
    }
    if (max_ && (value > units_of(*max_) || (is_max_excluded_ && value == units_of(*max_)))) {
      return false;
    }
    for (const std::string& step : steps_) {
      if (value % units_of(step) != 0) return false;
    }
    for (const std::string& hole : holes_) {
      if (value == units_of(hole)) return false;
    }
    return true;
  }

  /// A text that may or may not be allowed: most are near a bound.
  std::string any_text() {
    if (pick(12) == 0) {
      static const char* const kOdd[] = {"",   "-",   "01",  ".5",  "1.",   "+1",
                                         "-0", "0.0", "1e3", "--1", "-0.0", "00"};
      return kOdd[pick(12)];
    }
    std::string near = pick(2) == 0 && min_ ? *min_ : max_ ? *max_ : any_bound();
    if (!holes_.empty() && pick(3) == 0) near = holes_[0];
    const int places = pick(7);
    const auto unit = units_of(decimal(1, places));
    auto value = static_cast<long long>(units_of(near) / unit) + pick(7) - 3;
    if (!steps_.empty() && pick(2) == 0) {
      const auto step = static_cast<long long>(units_of(steps_[0]) / unit);
      if (step > 0) value -= value % step;
    }
    std::string text = decimal(value, places);
    if (pick(4) == 0) text += std::string(static_cast<std::size_t>(pick(9 - places + 1)), '0');
    return text;
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  std::string any_bound() {
    static const int kSizes[] = {3, 20, 1000, 2000000};
    const int size = kSizes[pick(4)];
    return decimal(pick(2 * size) - size, pick(5));
  }

  std::mt19937 random_;
  bool is_integer_ = false, is_min_excluded_ = false, is_max_excluded_ = false;
  std::optional<std::string> min_, max_;
  std::vector<std::string> steps_, holes_;
};

TEST(NumberProperty, ExactlyTheNumbersOfASetAreAllowed) {
  int num_allowed = 0, num_refused = 0, num_empty = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    NumberCase number_case(seed);
    if (!number_case.says_something()) continue;
    SCOPED_TRACE(number_case.schema());
    const auto grammar = testing::compiler().compile(
        testing::source(Source::Kind::kJsonSchema, number_case.schema()));
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().message(), "no text matches the grammar");
      ++num_empty;
    }
    const json::value schema = json::parse(number_case.schema());
    for (int i = 0; i < 150; ++i) {
      const std::string text = number_case.any_text();
      const bool is_allowed = number_case.allows(text);
      (is_allowed ? num_allowed : num_refused) += 1;
      EXPECT_EQ(grammar.ok() && testing::matches(*grammar, testing::byte_tokens(text)), is_allowed)
          << text;
      EXPECT_TRUE(!is_allowed || testing::is_valid(json::parse(text), schema, schema)) << text;
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_allowed, 10'000);
  EXPECT_GT(num_refused, 10'000);
  EXPECT_LT(num_empty, 50);
}

TEST(NumberProperty, BoundsOfAnySizeAreKept) {
  struct {
    const char* schema;
    std::vector<const char*> yes, no;
  } const cases[] = {
      {R"({"type":"number","minimum":0.1,"maximum":0.9})",
       {"0.1", "0.10", "0.5", "0.899999999999999", "0.9", "0.900"},
       {"0", "1", "0.09", "0.0999", "0.91", "-0.5", "5e-1", "0.9000000000000000000000"}},
      {R"({"type":"number","exclusiveMinimum":-0.5,"maximum":2.25})",
       {"-0.49", "0", "0.0", "1", "1.999", "2.25", "2.250"},
       {"-0.5", "-0.50", "-1", "2.251", "3", "-0", "-0.0"}},
      {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e-12})",
       {"0.000000000000999", "0.0000000000001"},
       {"0", "0.000000000001", "0.0", "1"}},
      {R"({"type":"integer","minimum":9007199254740993})",
       {"9007199254740993", "100000000000000000"},
       {"9007199254740992", "9007199254740993.0"}},
      {R"({"type":"number","minimum":1e300})", {}, {"1", "1e301"}},
      {R"({"type":"number","maximum":-1e-320})", {"-1", "-0.1"}, {"0", "1", "-0"}},
      {R"({"type":"number","multipleOf":0.01,"minimum":0})",
       {"0", "0.07", "19.99", "3", "3.1", "3.100"},
       {"0.001", "19.995", "-1", "-0"}},
      {R"({"type":"number","multipleOf":1e-20})", {"1", "1.123456789"}, {"\"1\""}},
      {R"({"type":"integer","multipleOf":0.4})", {"0", "2", "-4", "10"}, {"1", "4.0", "-0"}},
      {R"({"type":"integer","multipleOf":1000000})", {"0", "1000000", "-12000000"}, {"100000"}},
      {R"({"type":"number","not":{"type":"integer"}})", {"0.5", "-1.25"}, {"1", "1.0", "2.500e1"}},
      {R"({"allOf":[{"multipleOf":4},{"multipleOf":6}],"type":"integer"})",
       {"12", "0"},
       {"4", "6"}},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.schema);
    const auto grammar =
        testing::compiler().compile(testing::source(Source::Kind::kJsonSchema, each.schema));
    EXPECT_EQ(grammar.ok(), !each.yes.empty()) << grammar.status().message();
    if (!grammar.ok()) continue;
    for (const char* text : each.yes) EXPECT_TRUE(testing::matches(*grammar, text)) << text;
    for (const char* text : each.no) EXPECT_FALSE(testing::matches(*grammar, text)) << text;
  }
}

TEST(NumberProperty, StepsOfTooManyRemaindersAreRefused) {
  for (const char* step : {"99991", "0.123456789", "1e30", "0", "-1", "\"a\""}) {
    const auto grammar = testing::compiler().compile(testing::source(
        Source::Kind::kJsonSchema, std::string(R"({"type":"number","multipleOf":)") + step + "}"));
    EXPECT_FALSE(grammar.ok()) << step;
    EXPECT_NE(grammar.status().message().find("ultiple"), std::string::npos)
        << grammar.status().message();
  }
}

}  // namespace
}  // namespace tandem::grammar
