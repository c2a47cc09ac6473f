#include "tandem/grammar/string_formats.h"

#include <functional>
#include <map>
#include <string>

namespace tandem::grammar {
namespace {

const std::string kDate =
    "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))|"
    "([12][0-9](0[48]|[2468][048]|[13579][26])|(1[26]|2[048])00)-02-29)";
const std::string kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const std::string kByte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

const std::map<std::string, std::string, std::less<>> kFormats = {
    {"date", kDate},
    {"time", kTime},
    {"date-time", kDate + "T" + kTime},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\\.[A-Za-z0-9-]+)+"},
    {"ipv4", "(" + kByte + "\\.){3}" + kByte},
};

}  // namespace

std::string_view pattern_of_format(std::string_view format) {
  const auto found = kFormats.find(format);
  return found == kFormats.end() ? std::string_view() : found->second;
}

}  // namespace tandem::grammar
