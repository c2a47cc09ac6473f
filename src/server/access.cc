#include "tandem/server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace tandem::server {
namespace {

constexpr std::size_t kMaxKeyBytes = 512;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// Looks at every byte of `sent`, whatever it finds.
bool equals_in_constant_time(std::string_view sent, std::string_view key) {
  std::size_t difference = sent.size() ^ key.size();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    difference |= static_cast<std::size_t>(static_cast<unsigned char>(sent[i]) ^
                                           static_cast<unsigned char>(key[i % key.size()]));
  }
  return difference == 0;
}

char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equals_without_case(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return to_lower(a) == to_lower(b); });
}

constexpr std::string_view kBearer = "bearer ";

}  // namespace

core::Result<std::vector<std::string>> load_api_keys(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return core::invalid_argument(
        fmt::format("cannot read the API keys in '{}'; give a file with one key a line", path));
  }
  std::vector<std::string> keys;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string_view key = trimmed(line);
    if (key.empty() || key.front() == '#') continue;
    const bool is_printable =
        std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < '\x7f'; });
    if (!is_printable || key.size() > kMaxKeyBytes) {
      return core::invalid_argument(
          fmt::format("'{}', line {}: a key must be up to {} printable ASCII characters without "
                      "spaces",
                      path, number, kMaxKeyBytes));
    }
    keys.emplace_back(key);
  }
  if (keys.empty()) {
    return core::invalid_argument(
        fmt::format("'{}' holds no API key; write one a line, or leave the option out", path));
  }
  return keys;
}

bool is_authorized(std::string_view authorization, const std::vector<std::string>& keys) {
  if (!equals_without_case(authorization.substr(0, kBearer.size()), kBearer)) return false;
  const std::string_view sent = trimmed(authorization.substr(kBearer.size()));
  if (sent.size() > kMaxKeyBytes) return false;
  bool is_found = false;
  for (const std::string& key : keys) is_found |= equals_in_constant_time(sent, key);
  return is_found;
}

net::Headers cors_headers(std::string_view origin, const std::vector<std::string>& allowed) {
  if (origin.empty() || allowed.empty()) return {};
  const bool is_open = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!is_open && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) {
    return {{"Vary", "Origin"}};
  }
  return {{"Access-Control-Allow-Origin", is_open ? "*" : std::string(origin)},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
          {"Vary", "Origin"}};
}

bool is_foreign_page(const net::HttpRequest& request, const std::vector<std::string>& allowed) {
  const std::string_view origin = request.header("Origin");
  const std::size_t scheme = origin.starts_with("http://")    ? 7
                             : origin.starts_with("https://") ? 8
                                                              : 0;
  if (scheme == 0 && origin != "null") return false;
  // Set by browsers alone; holds behind proxies that change the host, too.
  if (request.header("Sec-Fetch-Site") == "same-origin") return false;
  const std::string_view host = request.header("Host");
  if (scheme > 0 && equals_without_case(origin.substr(scheme), host)) return false;
  return std::none_of(allowed.begin(), allowed.end(),
                      [&](const std::string& each) { return each == "*" || each == origin; });
}

}  // namespace tandem::server
