#pragma once

#include <string>
#include <string_view>

#include "tandem/core/status.h"

namespace tandem::server {

/// A failure as OpenAI's clients know it.
struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type = "server_error";
  std::string param;  ///< path of the field that is wrong, for example messages[0].role
  std::string code;
  int retry_seconds = 1;  ///< of a 429 or 503: when to try again
};

ApiError invalid_request(std::string message, std::string param = {}, std::string code = {});
/// A real feature of the API that this server does not have.
ApiError not_supported(std::string_view param);
ApiError model_not_found(std::string_view model);
/// `known`: the paths there are.
ApiError unknown_path(std::string_view method, std::string_view path, std::string_view known);
ApiError method_not_allowed(std::string_view method, std::string_view path);
/// 401, as OpenAI says it.
ApiError unauthorized();
/// 403: a page of another origin, which CORS does not allow.
ApiError forbidden_origin(std::string_view origin);
/// 503, to be tried again; `code` is one word: loading, draining, overloaded.
ApiError unavailable_now(std::string message, std::string code);
/// The error of any HTTP status, for what the HTTP layer refuses by itself.
ApiError http_error(int http_status, std::string_view message);
ApiError from_status(const core::Status& status);

/// {"error":{"message":..,"type":..,"param":..,"code":..}}; absent parts are null.
std::string to_json(const ApiError& error);

}  // namespace tandem::server
