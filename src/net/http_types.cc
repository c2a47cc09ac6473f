#include <charconv>

#include "tandem/net/http_client.h"
#include "tandem/net/http_server.h"

namespace tandem::net {
namespace {

char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool iequals(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (to_lower(a[i]) != to_lower(b[i])) return false;
  }
  return true;
}

}  // namespace

std::string_view find_header(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (iequals(key, name)) return value;
  }
  return {};
}

std::string_view HttpRequest::header(std::string_view name) const {
  return find_header(headers, name);
}

std::string_view HttpRequest::path() const {
  return std::string_view(target).substr(0, target.find('?'));
}

core::Result<Url> parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const auto fail = [text](std::string_view why) {
    return core::invalid_argument("URL '" + std::string(text) + "': " + std::string(why) +
                                  "; expected http://host[:port][/path]");
  };
  if (!iequals(text.substr(0, kScheme.size()), kScheme)) return fail("only http is supported");
  std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = rest.find_first_of("/?#");
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = slash == std::string_view::npos ? "" : rest.substr(slash);
  if (path.find_first_of("?#") != std::string_view::npos) return fail("no query is allowed");
  if (authority.find('@') != std::string_view::npos) return fail("no user name is allowed");

  Url url;
  const std::size_t bracket = authority.rfind(']');  // an IPv6 address stands in brackets
  const std::size_t colon = authority.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  if (has_port) {
    const std::string_view digits = authority.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (error != std::errc() || end != digits.data() + digits.size() || url.port == 0) {
      return fail("the port is not a number from 1 to 65535");
    }
    authority = authority.substr(0, colon);
  }
  if (authority.size() > 2 && authority.front() == '[' && authority.back() == ']') {
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return fail("the host is missing");
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  url.host = std::string(authority);
  url.path = std::string(path);
  return url;
}

}  // namespace tandem::net
