#include "tandem/bench/dataset.h"

#include <fmt/core.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

namespace tandem::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxEntryBytes = std::size_t{64} << 20;

/// Cuts the elements of a top-level JSON array out of a stream without parsing them.
class ArrayScanner {
 public:
  explicit ArrayScanner(std::streambuf& in) : in_(in) {}

  enum class Next { kElement, kEnd, kNotAnArray, kTruncated, kTooLong };

  /// The bytes of the next element in `out`.
  Next next(std::string* out) {
    int c = skip_blanks();
    if (is_first_) {
      if (c == 0xEF && take() == 0xBB && take() == 0xBF) c = skip_blanks();  // byte order mark
      if (c != '[') return Next::kNotAnArray;
      is_first_ = false;
      c = skip_blanks();
    } else if (c == ',') {
      c = skip_blanks();
    }
    if (c == ']') return Next::kEnd;
    return read_element(c, out);
  }

 private:
  static constexpr int kEof = -1;

  int take() {
    const auto c = in_.sbumpc();
    return c == std::streambuf::traits_type::eof() ? kEof : c & 0xff;
  }
  int skip_blanks() {
    int c = take();
    while (c == ' ' || c == '\n' || c == '\r' || c == '\t') c = take();
    return c;
  }

  Next read_element(int c, std::string* out) {
    out->clear();
    int depth = 0;
    bool is_in_string = false;
    for (; c != kEof; c = take()) {
      if (out->size() >= kMaxEntryBytes) return Next::kTooLong;
      out->push_back(static_cast<char>(c));
      if (is_in_string) {
        if (c == '\\') {
          const int escaped = take();
          if (escaped == kEof) return Next::kTruncated;
          out->push_back(static_cast<char>(escaped));
        } else if (c == '"') {
          is_in_string = false;
        }
      } else if (c == '"') {
        is_in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        --depth;
      }
      // A scalar ends before the comma or bracket that follows it, which stays in the stream.
      if (is_in_string || depth > 0) continue;
      const int following = in_.sgetc();
      if (depth < 0 || c == '}' || c == ']' || following == ',' || following == ']') {
        return Next::kElement;
      }
    }
    return Next::kTruncated;
  }

  std::streambuf& in_;
  bool is_first_ = true;
};

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

const json::string* string_member(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_string();
}

/// The first human turn, unless it is blank or there is none.
std::optional<std::string> first_human_turn(const json::value& conversation) {
  const json::object* object = conversation.if_object();
  const json::value* turns = object == nullptr ? nullptr : object->if_contains("conversations");
  if (turns == nullptr || !turns->is_array()) return std::nullopt;
  for (const json::value& turn : turns->get_array()) {
    if (!turn.is_object()) continue;
    const json::string* from = string_member(turn.get_object(), "from");
    if (from == nullptr || (*from != "human" && *from != "user")) continue;
    const json::string* text = string_member(turn.get_object(), "value");
    if (text == nullptr || is_blank(*text)) return std::nullopt;
    return std::string(*text);
  }
  return std::nullopt;
}

core::Status not_sharegpt(const std::string& path, std::string_view what) {
  return core::data_loss(fmt::format(
      "{}: {}; a ShareGPT V3 file is a JSON array of objects with \"conversations\"", path, what));
}

}  // namespace

core::Result<std::vector<std::string>> read_sharegpt(const std::string& path, std::size_t limit) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path, error)) {
    return core::not_found(fmt::format("{}: cannot open the data set; check the path", path));
  }
  ArrayScanner scanner(*file.rdbuf());
  std::vector<std::string> prompts;
  std::string entry;
  for (std::size_t index = 0; prompts.size() < limit; ++index) {
    const ArrayScanner::Next next = scanner.next(&entry);
    if (next == ArrayScanner::Next::kEnd) break;
    if (next == ArrayScanner::Next::kNotAnArray) {
      return not_sharegpt(path, "does not begin with a JSON array");
    }
    if (next == ArrayScanner::Next::kTruncated) {
      return not_sharegpt(path, fmt::format("the file is truncated in entry {}", index));
    }
    if (next == ArrayScanner::Next::kTooLong) {
      return not_sharegpt(
          path, fmt::format("entry {} is longer than {} MiB", index, kMaxEntryBytes >> 20));
    }
    boost::system::error_code parse_error;
    const json::value conversation = json::parse(entry, parse_error);
    if (parse_error) {
      return not_sharegpt(path,
                          fmt::format("entry {} is not JSON ({})", index, parse_error.message()));
    }
    if (auto prompt = first_human_turn(conversation)) prompts.push_back(std::move(*prompt));
  }
  if (prompts.empty()) {
    return core::invalid_argument(
        fmt::format("{}: no conversation has a human turn; use a ShareGPT V3 file", path));
  }
  return prompts;
}

}  // namespace tandem::bench
