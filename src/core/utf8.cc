#include "tandem/core/utf8.h"

namespace tandem::core {

namespace {

/// What may follow a lead byte: the number of continuation bytes and the range of the first one
/// (later ones are always 80..BF). Unicode standard, table 3-7.
struct LeadByte {
  int continuations;
  unsigned char first_low, first_high;
};

constexpr LeadByte lead_byte(unsigned char byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return {Utf8Char::Kind::kValid, 1, first};
  const LeadByte lead = lead_byte(first);
  if (lead.continuations == 0) return {Utf8Char::Kind::kInvalid, 1, kReplacementChar};

  // The lead byte of n continuation bytes carries 6 - n payload bits.
  char32_t code_point = first & ((1U << (6 - lead.continuations)) - 1U);
  unsigned char low = lead.first_low;
  unsigned char high = lead.first_high;
  std::uint8_t length = 1;
  for (; length <= lead.continuations; ++length) {
    if (length == bytes.size()) return {Utf8Char::Kind::kTruncated, length, kReplacementChar};
    const auto byte = static_cast<unsigned char>(bytes[length]);
    if (byte < low || byte > high) return {Utf8Char::Kind::kInvalid, length, kReplacementChar};
    code_point = (code_point << 6) | (byte & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Char::Kind::kValid, length, code_point};
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&out](char32_t byte) {
    out.push_back(static_cast<char>(byte));
  };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::string sanitize_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Char c = decode_utf8(bytes);
    out.append(c.kind == Utf8Char::Kind::kValid ? bytes.substr(0, c.length) : kReplacementUtf8);
    bytes.remove_prefix(c.length);
  }
  return out;
}

}  // namespace tandem::core
