#include "tandem/server/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

constexpr std::string_view kInvalidRequest = "invalid_request_error";
/// Paths and names are the client's: what of them goes into a message is bounded.
constexpr std::size_t kMaxQuotedBytes = 200;

std::string quoted(std::string_view text) {
  const bool is_cut = text.size() > kMaxQuotedBytes;
  return fmt::format("'{}{}'", well_formed(text.substr(0, kMaxQuotedBytes)), is_cut ? "..." : "");
}

std::string_view type_of(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  if (http_status == 503) return "service_unavailable_error";
  return http_status >= 500 ? "server_error" : kInvalidRequest;
}

int http_status_of(core::Code code) {
  switch (code) {
    case core::Code::kInvalidArgument:
    case core::Code::kUnimplemented:
      return 400;
    case core::Code::kNotFound:
      return 404;
    case core::Code::kResourceExhausted:
      return 429;
    case core::Code::kUnavailable:
    case core::Code::kCancelled:
      return 503;
    default:
      return 500;
  }
}

void append_optional(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

}  // namespace

ApiError invalid_request(std::string message, std::string param, std::string code) {
  return {400, std::move(message), std::string(kInvalidRequest), std::move(param), std::move(code)};
}

ApiError not_supported(std::string_view param) {
  return invalid_request(
      fmt::format("'{}' is not supported yet by this server; leave it out.", param),
      std::string(param), "unsupported_parameter");
}

ApiError model_not_found(std::string_view model) {
  return {
      404,
      fmt::format("The model {} does not exist; see /v1/models for the one served.", quoted(model)),
      std::string(kInvalidRequest), "model", "model_not_found"};
}

ApiError unknown_path(std::string_view method, std::string_view path, std::string_view known) {
  return {
      404,
      fmt::format("Unknown request URL: {} {}; this server has {}.", method, quoted(path), known),
      std::string(kInvalidRequest),
      {},
      "unknown_url"};
}

ApiError method_not_allowed(std::string_view method, std::string_view path) {
  return {405,
          fmt::format("Not allowed to {} on {}.", method, quoted(path)),
          std::string(kInvalidRequest),
          {},
          "method_not_supported"};
}

ApiError unauthorized() {
  return {401,
          "Incorrect API key provided: send one of the server's keys as 'Authorization: Bearer "
          "KEY'.",
          std::string(kInvalidRequest),
          {},
          "invalid_api_key"};
}

ApiError forbidden_origin(std::string_view origin) {
  return {403,
          fmt::format("Pages of {} may not use this server; name their origin with --cors-origin "
                      "when it starts, or serve with API keys.",
                      quoted(origin)),
          std::string(kInvalidRequest),
          {},
          "origin_not_allowed"};
}

ApiError unavailable_now(std::string message, std::string code) {
  return {503, std::move(message), std::string(type_of(503)), {}, std::move(code)};
}

ApiError http_error(int http_status, std::string_view message) {
  return {http_status, std::string(message), std::string(type_of(http_status)), {}, {}};
}

ApiError from_status(const core::Status& status) {
  ApiError error = http_error(http_status_of(status.code()), status.message());
  if (error.http_status == 429) error.code = "queue_full";
  if (error.http_status == 503) error.code = "overloaded";
  return error;
}

std::string to_json(const ApiError& error) {
  std::string json = R"({"error":{"message":)";
  append_json_string(json, error.message);
  json += R"(,"type":)";
  append_json_string(json, error.type);
  json += R"(,"param":)";
  append_optional(json, error.param);
  json += R"(,"code":)";
  append_optional(json, error.code);
  return json += "}}";
}

}  // namespace tandem::server
