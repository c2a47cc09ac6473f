#include "tandem/chat/wire_json.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <string>

namespace tandem::chat {

namespace {

namespace json = boost::json;

constexpr char kBigIntegerMark = '\xFF';
constexpr std::size_t kMaxDepth = 128;

/// Builds a value from the parser's events. Boost's own builder takes numbers as the parser
/// computed them, which rounds some doubles wrongly (before 1.84) and turns long integers into
/// doubles; this one reads the number's text again where that can matter.
class Builder {
 public:
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();
  using Error = json::error_code;
  using Text = json::string_view;

  Builder() { stack_.reset(); }
  json::value release() { return stack_.release(); }

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error&) { return true; }
  bool on_object_end(std::size_t n, Error&) { return stack_.push_object(n), true; }
  bool on_array_begin(Error&) { return true; }
  bool on_array_end(std::size_t n, Error&) { return stack_.push_array(n), true; }
  bool on_key_part(Text s, std::size_t, Error&) { return stack_.push_chars(s), true; }
  bool on_key(Text s, std::size_t, Error&) { return stack_.push_key(s), true; }
  bool on_string_part(Text s, std::size_t, Error&) { return stack_.push_chars(s), true; }
  bool on_string(Text s, std::size_t, Error&) { return stack_.push_string(s), true; }
  bool on_number_part(Text s, Error&) { return number_.append(s.data(), s.size()), true; }
  bool on_int64(std::int64_t i, Text, Error&) {
    number_.clear();
    return stack_.push_int64(i), true;
  }
  bool on_uint64(std::uint64_t u, Text, Error&) {
    number_.clear();
    return stack_.push_uint64(u), true;
  }
  bool on_double(double approximate, Text s, Error&) {
    number_.append(s.data(), s.size());
    if (number_.find_first_of(".eE") == std::string::npos) {
      number_.insert(number_.begin(), kBigIntegerMark);
      stack_.push_string(number_);
    } else {
      double exact = approximate;  // stays where the number is out of range: infinity or zero
      std::from_chars(number_.data(), number_.data() + number_.size(), exact);
      stack_.push_double(exact);
    }
    number_.clear();
    return true;
  }
  bool on_bool(bool b, Error&) { return stack_.push_bool(b), true; }
  bool on_null(Error&) { return stack_.push_null(), true; }
  bool on_comment_part(Text, Error&) { return true; }
  bool on_comment(Text, Error&) { return true; }

 private:
  json::value_stack stack_;
  std::string number_;
};

}  // namespace

core::Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<Builder> parser(options);
  json::error_code error;
  const std::size_t parsed = parser.write_some(false, text.data(), text.size(), error);
  if (!error && parsed < text.size()) error = json::error::extra_data;
  if (error) {
    return core::invalid_argument(
        fmt::format("not valid JSON: {} at byte {}", error.message(), parsed));
  }
  return parser.handler().release();
}

std::optional<std::string_view> big_integer(const json::value& value) {
  const auto* text = value.if_string();
  if (text == nullptr || text->empty() || (*text)[0] != kBigIntegerMark) return std::nullopt;
  return std::string_view(*text).substr(1);
}

}  // namespace tandem::chat
