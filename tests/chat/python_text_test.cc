#include "tandem/chat/python_text.h"

#include <gtest/gtest.h>

#include <boost/json/value.hpp>
#include <limits>
#include <string>

#include "tandem/chat/wire_json.h"

namespace tandem::chat {
namespace {

std::string printed(std::string_view json_text) {
  const auto value = parse_json(json_text);
  EXPECT_TRUE(value.ok()) << value.status().message();
  return to_python_str(*value);
}

TEST(PythonText, PrintsNumbersAsPythonDoes) {
  for (const char* same :
       {"0", "-7", "0.1", "1.0", "-0.0", "1e+22", "1e-07", "2.5e-10", "1e+16", "123456789012345.6",
        "0.12345678901234568", "0.0001", "1e-05", "18446744073709551615", "-9223372036854775808",
        "1.7976931348623157e+308", "5e-324", "123456789012345678901234567890",
        "1234567890123456.0"}) {
    EXPECT_EQ(printed(same), same);
  }
  EXPECT_EQ(printed("1E5"), "100000.0");
  EXPECT_EQ(printed("-0"), "0");
  EXPECT_EQ(printed("12345678901234567.0"), "1.2345678901234568e+16");
  EXPECT_EQ(printed("1e999"), "inf");
  EXPECT_EQ(printed("-1e999"), "-inf");
  EXPECT_EQ(to_python_str(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(PythonText, PrintsContainersAsRepr) {
  EXPECT_EQ(printed(R"(["a", "it's", "\"'", null, true, false, 1.0, {"k": []}])"),
            R"(['a', "it's", '"\'', None, True, False, 1.0, {'k': []}])");
  EXPECT_EQ(printed(R"(["\n\\\u0001\u00e9\u00a0\u2028"])"), "['\\n\\\\\\x01\xC3\xA9\\xa0\\u2028']");
  EXPECT_EQ(printed(R"("plain 'text'")"), "plain 'text'");
  EXPECT_EQ(printed("[123456789012345678901234567890]"), "[123456789012345678901234567890]");
}

TEST(PythonText, StripsUnicodeWhiteSpaceOnly) {
  EXPECT_EQ(strip("\xC2\xA0\xE3\x80\x80 hi \xE2\x80\x83\xC2\x85\x1C"), "hi");
  EXPECT_EQ(strip("\xE2\x80\x8Bhi\xEF\xBB\xBF"), "\xE2\x80\x8Bhi\xEF\xBB\xBF");
  EXPECT_EQ(strip(" \n\t "), "");
  EXPECT_EQ(strip(""), "");
  EXPECT_EQ(strip(" \x80\x80 "), "\x80\x80");
}

TEST(PythonText, LowersBeyondAscii) {
  EXPECT_EQ(lower("A\xC3\x89\xCE\xA3z\xD0\x96"), "a\xC3\xA9\xCF\x83z\xD0\xB6");
  EXPECT_EQ(lower("\xC4\xB0"), "i\xCC\x87");                 // U+0130
  EXPECT_EQ(lower("\xC4\x80\xC4\x81"), "\xC4\x81\xC4\x81");  // every second one maps
  EXPECT_EQ(lower("\xF0\x90\x90\x80"), "\xF0\x90\x90\xA8");  // U+10400
}

TEST(WireJson, KeepsLongIntegersApartFromStrings) {
  const auto value = parse_json("[123456789012345678901234567890, \"12\", 12]");
  ASSERT_TRUE(value.ok());
  const auto& list = value->get_array();
  EXPECT_EQ(big_integer(list[0]), "123456789012345678901234567890");
  EXPECT_EQ(big_integer(list[1]), std::nullopt);
  EXPECT_EQ(big_integer(list[2]), std::nullopt);
  EXPECT_FALSE(parse_json("\"\xFF"
                          "12\"")
                   .ok());
}

TEST(WireJson, RoundsDoublesCorrectly) {
  EXPECT_EQ(parse_json("0.1234567890123456789")->get_double(), 0.1234567890123456789);
  EXPECT_EQ(parse_json("9007199254740993.0")->get_double(), 9007199254740992.0);
  EXPECT_EQ(parse_json("2.2250738585072011e-308")->get_double(), 2.2250738585072011e-308);
}

TEST(WireJson, SaysWhereTextIsNoJson) {
  const auto bad = parse_json("{\"a\": 1,}");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), core::Code::kInvalidArgument);
  EXPECT_NE(bad.status().message().find("at byte 8"), std::string::npos) << bad.status().message();
  for (const char* text : {"", "1 2", "nul", "\"\xFF\"", "[1", "\"\\ud800\"", "NaN"}) {
    EXPECT_FALSE(parse_json(text).ok()) << text;
  }
  EXPECT_TRUE(parse_json(std::string(100, '[') + std::string(100, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(1000, '[') + std::string(1000, ']')).ok());
}

}  // namespace
}  // namespace tandem::chat
