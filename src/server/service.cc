#include "tandem/server/service.h"

#include <fmt/format.h>

#include <ctime>
#include <random>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/server/access.h"

namespace tandem::server {
namespace {

/// Bodies that wait for a prompt worker, all together.
constexpr std::size_t kMaxPendingBytes = 64 * 1024 * 1024;

std::uint64_t entropy() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

Service::Service(const ServerOptions& options)
    : options_(options),
      created_(std::time(nullptr)),
      metrics_(std::make_shared<Metrics>(options.model_name)),
      queue_(options.max_queue_tokens),
      random_state_(entropy()),
      prompts_(options.num_prompt_workers, static_cast<std::size_t>(options.max_pending_prompts),
               std::max(kMaxPendingBytes, options.max_body_bytes)) {}

Service::Phase Service::phase() const {
  if (has_model() && !model_.engine->stats().healthy) return Phase::kFailed;
  if (is_draining_) return Phase::kDraining;
  return has_model() ? Phase::kServing : Phase::kLoading;
}

void Service::attach(ServedModel model) {
  TANDEM_CHECK(!has_model(), "a server serves one model");
  TANDEM_CHECK(model.engine != nullptr && model.tokenizer != nullptr, "the model is incomplete");
  model_ = std::move(model);
  if (!model_.grammars) model_.grammars = std::make_shared<grammar::Compiler>(*model_.tokenizer);
  has_model_.store(true, std::memory_order_release);
}

void Service::begin_drain() {
  is_draining_ = true;
  in_flight_.close();
}

std::uint64_t Service::random_number() {  // SplitMix64 (Steele, Lea and Flood, 2014)
  std::uint64_t z = random_state_.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string Service::random_id(std::string_view prefix) {
  return fmt::format("{}{:016x}", prefix, random_number());
}

std::unique_ptr<Reply> Service::make_reply(const net::HttpRequest& request,
                                           std::shared_ptr<net::Responder> responder,
                                           bool is_logged) {
  Reply::Options reply;
  reply.fallback_request_id = random_id("req-");
  reply.log = options_.access_log && is_logged;
  reply.headers = cors_headers(request.header("Origin"), options_.cors_origins);
  reply.metrics = metrics_;
  return std::make_unique<Reply>(request, std::move(responder), std::move(reply));
}

bool refuse_unless_serving(const Service& service, Reply& reply) {
  switch (service.phase()) {
    case Service::Phase::kServing:
      return false;
    case Service::Phase::kLoading:
      reply.send_error(unavailable_now("The model is being loaded; try again soon.", "loading"));
      return true;
    case Service::Phase::kDraining:
      reply.send_error(unavailable_now("The server is shutting down.", "draining"));
      return true;
    case Service::Phase::kFailed:
      reply.send_error(
          unavailable_now("The device has failed; the server must be restarted.", "failed"));
      return true;
  }
  return true;
}

}  // namespace tandem::server
