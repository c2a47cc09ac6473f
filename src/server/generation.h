#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "tandem/net/http_server.h"
#include "tandem/server/answer_writer.h"
#include "tandem/server/prompt_builder.h"
#include "tandem/server/service.h"

namespace tandem::server {

/// One completion request from its body to the end of its answer. It is prepared on a prompt
/// worker and then driven by the engine's events, each of which becomes at most one write. Ends
/// early when the client leaves: the engine is told, the slot is free within a step.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// Takes the request on, or answers why not. Thread: I/O.
  static void start(std::shared_ptr<Service> service, Endpoint endpoint, net::HttpRequest request,
                    std::unique_ptr<Reply> reply);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

 private:
  Generation(std::shared_ptr<Service> service, Endpoint endpoint, std::unique_ptr<Reply> reply,
             std::uint64_t id);

  void prepare(std::string_view body);        // thread: prompt worker
  void submit(PreparedRequest prepared);      // thread: prompt worker
  void on_client_gone();                      // thread: I/O
  void on_event(const engine::Event& event);  // thread: engine, and what follows
  void observe(const engine::Event& event);
  void stream(const engine::Event& event);
  void collect(const engine::Event& event);
  void end(const engine::Event& event);

  const std::shared_ptr<Service> service_;
  const Endpoint endpoint_;
  const std::unique_ptr<Reply> reply_;
  const std::uint64_t engine_id_;
  std::atomic<bool> is_client_gone_ = false;

  bool is_stream_ = false;
  bool include_usage_ = false;
  std::optional<AnswerWriter> writer_;
  bool is_stream_open_ = false;
  std::string text_;  // of an answer that is not streamed; the bytes of an event of one that is
  std::optional<std::chrono::steady_clock::time_point> last_token_;
};

}  // namespace tandem::server
