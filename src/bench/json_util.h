#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::bench {

/// A member of an object, or null where there is none or `value` is no object.
inline const boost::json::value* member(const boost::json::value* value, std::string_view key) {
  if (value == nullptr || !value->is_object()) return nullptr;
  return value->get_object().if_contains(key);
}

/// A non-negative integer.
inline std::optional<std::uint64_t> as_count(const boost::json::value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  if (value->is_int64() && value->get_int64() >= 0) {
    return static_cast<std::uint64_t>(value->get_int64());
  }
  return std::nullopt;
}

/// Text, or empty where `value` is no string.
inline std::string_view as_text(const boost::json::value* value) {
  if (value == nullptr || !value->is_string()) return {};
  return value->get_string();
}

}  // namespace tandem::bench
