#include "tandem/engine/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <rapidcheck/gtest.h>

namespace tandem::engine {
namespace {

/// Text before the stop string that is complete first.
std::string cut(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t start = std::string::npos;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        start = std::min(start, end - stop.size());
      }
    }
    if (start != std::string::npos) return text.substr(0, start);
  }
  return text;
}

TEST(StopFilter, HoldsBackOnlyWhatCouldStillBecomeAStop) {
  StopFilter filter({"stop", "topple"});
  EXPECT_EQ(filter.push("a st"), "a ");
  EXPECT_EQ(filter.push("op"), "");  // complete
  EXPECT_TRUE(filter.found());
  EXPECT_EQ(filter.push("more"), "");
  EXPECT_EQ(filter.flush(), "");

  StopFilter other({"aab"});
  EXPECT_EQ(other.push("aaa"), "a");  // "aa" may go on
  EXPECT_EQ(other.push("c"), "aac");
  EXPECT_EQ(other.push("xa"), "x");
  EXPECT_EQ(other.flush(), "a");
  EXPECT_FALSE(other.found());
}

TEST(StopFilter, WithoutStopsPassesEverything) {
  StopFilter filter({});
  EXPECT_EQ(filter.push("all of it"), "all of it");
  EXPECT_EQ(filter.flush(), "");
}

TEST(StopFilter, OfStopsThatEndTogetherTheLongestCounts) {
  StopFilter filter({"b", "ab"});
  EXPECT_EQ(filter.push("xab"), "x");
  EXPECT_TRUE(filter.found());
}

RC_GTEST_PROP(StopFilter, AnyGroupingGivesTheTextBeforeTheFirstStop, ()) {
  const auto word = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const auto text = *rc::gen::resize(60, word);
  const auto stops =
      *rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(word)));
  StopFilter filter(stops);
  std::string out;
  for (std::size_t done = 0; done < text.size();) {
    const auto piece = static_cast<std::size_t>(*rc::gen::inRange(1, 5));
    const std::string part = text.substr(done, piece);
    done += part.size();
    out += filter.push(part);
    const std::string expected = cut(text, stops);
    RC_ASSERT(expected.compare(0, out.size(), out) == 0);
    if (filter.found()) break;
    // Not more is held back than the longest stop string less one byte.
    std::size_t longest = 1;
    for (const std::string& stop : stops) longest = std::max(longest, stop.size());
    RC_ASSERT(done - out.size() < longest);
  }
  out += filter.flush();
  RC_ASSERT(out == cut(text, stops));
  RC_ASSERT(filter.found() == (cut(text, stops).size() < text.size()));
}

}  // namespace
}  // namespace tandem::engine
