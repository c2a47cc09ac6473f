#include "tandem/core/printable.h"

#include <gtest/gtest.h>

namespace tandem::core {
namespace {

TEST(Printable, EscapesWhatATerminalOrALogWouldNotShow) {
  EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x96\x81", 64), "caf\xc3\xa9 \xe2\x96\x81");
  EXPECT_EQ(printable("a\x1b[2J\n\t\x7f", 64), "a\\x1B[2J\\n\\t\\x7F");
  EXPECT_EQ(printable("\xff\xc3", 64), "\\xFF\\xC3");
}

TEST(Printable, CutsAtTheBorderOfACharacter) {
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("ab\xc3\xa9z", 3), "ab\xc3\xa9...");
  EXPECT_EQ(printable("abc", 3), "abc");
}

TEST(Printable, KnowsWellFormedUtf8) {
  for (const char* text : {"", "a", "\xc2\x80", "\xe0\xa0\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(text)) << printable(text, 64);
  }
  // A lone tail, overlong forms, a surrogate, beyond U+10FFFF, cut short.
  for (const char* text : {"\x80", "\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                           "a\xe2\x96"}) {
    EXPECT_FALSE(is_utf8(text)) << printable(text, 64);
  }
}

TEST(Printable, TellsBadUtf8FromBadJson) {
  EXPECT_EQ(why_not_json("{", "incomplete JSON"), "not JSON (incomplete JSON)");
  EXPECT_EQ(why_not_json("{\"\xff\"}", "syntax error"), "not UTF-8, which JSON must be");
}

}  // namespace
}  // namespace tandem::core
