#include "tandem/server/routes.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tandem/core/printable.h"
#include "tandem/server/access.h"
#include "tandem/server/generation.h"
#include "tandem/server/json_text.h"
#include "tandem/server/page.h"
#include "tandem/server/text_tools.h"

namespace tandem::server {
namespace {

constexpr std::string_view kModelsPath = "/v1/models";

/// What the route table hands to a handler. The handler may take the request and the reply.
struct Call {
  const std::shared_ptr<Service>& service;
  net::HttpRequest& request;
  std::unique_ptr<Reply>& reply;
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Decodes %XX; what is no such triple stands for itself.
std::string percent_decoded(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_triple = text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 &&
                           hex_digit(text[i + 2]) >= 0;
    if (is_triple) {
      result.push_back(static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])));
      i += 2;
    } else {
      result.push_back(text[i]);
    }
  }
  return result;
}

std::string model_json(const Service& service) {
  std::string json = R"({"id":)";
  append_json_string(json, service.options().model_name);
  json += fmt::format(R"(,"object":"model","created":{},"owned_by":"tandem",)"
                      R"("max_model_len":{},"parent":null,"root":)",
                      service.created(), service.model().max_context);
  append_json_string(json, service.options().model_name);  // vLLM's benchmark reads it
  return json + "}";
}

void list_models(Call& call) {
  if (refuse_unless_serving(*call.service, *call.reply)) return;
  call.reply->send_json(
      200, fmt::format(R"({{"object":"list","data":[{}]}})", model_json(*call.service)));
}

void show_model(Call& call) {
  if (refuse_unless_serving(*call.service, *call.reply)) return;
  const std::string id = percent_decoded(call.request.path().substr(kModelsPath.size() + 1));
  if (id != call.service->options().model_name) {
    return call.reply->send_error(model_not_found(id));
  }
  call.reply->send_json(200, model_json(*call.service));
}

void show_health(Call& call) {
  switch (call.service->phase()) {
    case Service::Phase::kServing:
      return call.reply->send_json(200, R"({"status":"ok"})");
    case Service::Phase::kLoading:
      return call.reply->send_json(503, R"({"status":"loading"})");
    case Service::Phase::kDraining:
      return call.reply->send_json(503, R"({"status":"draining"})");
    case Service::Phase::kFailed:
      return call.reply->send_json(503, R"({"status":"failed"})");
  }
}

void show_metrics(Call& call) {
  std::optional<engine::EngineStats> stats;
  if (call.service->has_model()) stats = call.service->model().engine->stats();
  call.reply->send(200, "text/plain; version=0.0.4; charset=utf-8",
                   call.service->metrics().text(stats ? &*stats : nullptr));
}

void complete_chat(Call& call) {
  Generation::start(call.service, kChatEndpoint, std::move(call.request), std::move(call.reply));
}

void complete_text(Call& call) {
  Generation::start(call.service, kCompletionEndpoint, std::move(call.request),
                    std::move(call.reply));
}

std::string paths_of_api();

/// The chat page, which calls nothing but this server. Thread: I/O.
void show_page(Call& call) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"}};
  const std::string_view path = call.request.path();
  const std::string_view wanted = path == "/" ? "index.html" : path.substr(1);
  for (const PageFile& file : page_files()) {
    if (file.name != wanted) continue;
    for (const auto& [suffix, type] : kTypes) {
      if (!file.name.ends_with(suffix)) continue;
      return call.reply->send(
          200, type, std::string(file.bytes),
          {{"Cache-Control", "no-cache"},
           {"Content-Security-Policy",
            "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"},
           {"X-Content-Type-Options", "nosniff"},
           {"Referrer-Policy", "no-referrer"}});
    }
  }
  call.reply->send_error(unknown_path(call.request.method, path, paths_of_api()));
}

template <TextTool tool>
void use_text_tool(Call& call) {
  run_text_tool(call.service, tool, std::move(call.request), std::move(call.reply));
}

void make_response(Call& call) {
  Generation::start(call.service, kResponsesEndpoint, std::move(call.request),
                    std::move(call.reply));
}

struct Route {
  std::string_view method;
  std::string_view path;  ///< one that ends with '/' covers what lies below it, but for "/"
  void (*handle)(Call& call);
  /// Whether it serves the model: asks for an API key and is logged. Probes and scrapes have no
  /// key, and would drown the access log.
  bool is_api;
};

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", complete_chat, true},
    {"POST", "/v1/completions", complete_text, true},
    {"POST", "/v1/responses", make_response, true},
    {"POST", "/tokenize", use_text_tool<tokenize>, true},
    {"POST", "/detokenize", use_text_tool<detokenize>, true},
    {"POST", "/apply-template", use_text_tool<apply_template>, true},
    {"GET", kModelsPath, list_models, true},
    {"GET", "/v1/models/", show_model, true},
    {"GET", "/health", show_health, false},
    {"GET", "/ready", show_health, false},
    {"GET", "/metrics", show_metrics, false},
    {"GET", "/", show_page, false},
    {"GET", "/chat.css", show_page, false},
    {"GET", "/chat.js", show_page, false},
};

const Route* find_route(std::string_view path) {
  for (const Route& route : kRoutes) {
    const bool is_prefix = route.path.size() > 1 && route.path.ends_with('/');
    if (path == route.path) return is_prefix ? nullptr : &route;
    if (is_prefix && path.starts_with(route.path)) return &route;
  }
  return nullptr;
}

/// For a client that has a typing error, another version's path or one of another server's.
std::string paths_of_api() {
  std::string list;
  for (const Route& route : kRoutes) {
    if (!route.is_api || route.path.ends_with('/')) continue;
    list.append(list.empty() ? "" : ", ").append(route.path);
  }
  return list;
}

/// What a browser asks before a page of another origin may call; the answer's CORS headers decide.
/// Whatever headers the page wants to send are fine: OpenAI's client has a dozen of its own.
void answer_preflight(const net::HttpRequest& request, Reply& reply) {
  const std::string_view wanted = request.header("Access-Control-Request-Headers");
  reply.send(200, "text/plain", "",
             {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
              {"Access-Control-Allow-Headers",
               wanted.empty() ? "Authorization, Content-Type" : std::string(wanted)},
              {"Access-Control-Max-Age", "86400"}});
}

}  // namespace

void route(const std::shared_ptr<Service>& service, net::HttpRequest request,
           std::shared_ptr<net::Responder> responder) {
  const Route* found = find_route(request.path());
  auto reply = service->make_reply(request, std::move(responder), !found || found->is_api);
  const ServerOptions& options = service->options();
  if (request.method == "OPTIONS" && !options.cors_origins.empty()) {
    return answer_preflight(request, *reply);
  }
  const bool is_guarded = !options.api_keys.empty() && (!found || found->is_api);
  if (is_guarded && !is_authorized(request.header("Authorization"), options.api_keys)) {
    const ApiError error = unauthorized();
    return reply->send(error.http_status, "application/json", to_json(error),
                       {{"WWW-Authenticate", "Bearer"}});
  }
  if (found == nullptr) {
    return reply->send_error(unknown_path(request.method, request.path(), paths_of_api()));
  }
  // The HTTP layer holds the body of a HEAD's answer back.
  const bool is_allowed =
      request.method == found->method || (request.method == "HEAD" && found->method == "GET");
  if (!is_allowed) {
    const ApiError error = method_not_allowed(request.method, request.path());
    return reply->send(error.http_status, "application/json", to_json(error),
                       {{"Allow", found->method == "GET" ? "GET, HEAD" : "POST"}});
  }
  if (const std::string_view coding = request.header("Content-Encoding");
      !coding.empty() && coding != "identity") {
    return reply->send_error(http_error(
        415, fmt::format("The body is encoded as '{}'; send it plain, without Content-Encoding.",
                         core::printable(coding, 40))));
  }
  if (found->method == "POST" && options.api_keys.empty() &&
      is_foreign_page(request, options.cors_origins)) {
    return reply->send_error(forbidden_origin(request.header("Origin")));
  }
  Call call{service, request, reply};
  found->handle(call);
}

}  // namespace tandem::server
