#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::core {

/// U+FFFD, which stands for what is not UTF-8, and its three bytes.
inline constexpr char32_t kReplacementChar = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

/// The first character of some bytes.
struct Utf8Char {
  enum class Kind : std::uint8_t {
    kValid,
    kInvalid,    ///< a maximal ill-formed subpart, to be replaced by one U+FFFD
    kTruncated,  ///< the bytes end inside what may still become a character
  };
  Kind kind;
  std::uint8_t length;  ///< bytes read, 1 to 4; of kTruncated: all that are left, 1 to 3
  char32_t code_point;  ///< U+FFFD unless kValid
};

/// Decodes the first character of `bytes`, which must not be empty. Ill-formed input is cut as
/// the Unicode standard recommends (table 3-7, "maximal subparts"; the WHATWG decoder does so too).
Utf8Char decode_utf8(std::string_view bytes);

/// Appends the UTF-8 bytes of a code point (below U+110000, not a surrogate).
void append_utf8(char32_t code_point, std::string& out);

/// The text with every maximal ill-formed subpart, also one cut off at the end, become U+FFFD.
std::string sanitize_utf8(std::string_view bytes);

}  // namespace tandem::core
