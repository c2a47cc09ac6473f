#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tandem/net/http_server.h"
#include "tandem/server/in_flight.h"
#include "tandem/server/metrics.h"
#include "tandem/server/prompt_pool.h"
#include "tandem/server/queue_budget.h"
#include "tandem/server/reply.h"
#include "tandem/server/server.h"

namespace tandem::server {

/// What the handlers of a server share. Outlives every request. Thread: any.
class Service {
 public:
  explicit Service(const ServerOptions& options);

  enum class Phase { kLoading, kServing, kDraining, kFailed };
  Phase phase() const;
  void attach(ServedModel model);
  /// From now on new generations are refused.
  void begin_drain();

  const ServerOptions& options() const { return options_; }
  /// Valid once the phase has left kLoading with a model attached.
  const ServedModel& model() const { return model_; }
  bool has_model() const { return has_model_.load(std::memory_order_acquire); }
  std::int64_t created() const { return created_; }

  Metrics& metrics() { return *metrics_; }
  PromptPool& prompts() { return prompts_; }
  InFlight& in_flight() { return in_flight_; }
  QueueBudget& queue() { return queue_; }

  /// The first of `count` engine ids that nobody else uses, from 1 on; public ids and seeds cannot
  /// be guessed from one another.
  std::uint64_t reserve_engine_ids(int count) {
    return next_id_.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
  }
  std::uint64_t random_number();
  std::string random_id(std::string_view prefix);

  std::unique_ptr<Reply> make_reply(const net::HttpRequest& request,
                                    std::shared_ptr<net::Responder> responder, bool is_logged);

 private:
  const ServerOptions options_;
  const std::int64_t created_;
  const std::shared_ptr<Metrics> metrics_;
  InFlight in_flight_;
  QueueBudget queue_;
  ServedModel model_;
  std::atomic<bool> has_model_ = false;  // release: model_ has been written
  std::atomic<bool> is_draining_ = false;
  std::atomic<std::uint64_t> next_id_ = 1;
  std::atomic<std::uint64_t> random_state_;
  PromptPool prompts_;  // its threads end first
};

/// Answers a request that no generation may start for, or returns false.
bool refuse_unless_serving(const Service& service, Reply& reply);

}  // namespace tandem::server
