#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tandem/net/http_server.h"
#include "tandem/server/answer_writer.h"
#include "tandem/server/choice_output.h"
#include "tandem/server/prompt_builder.h"
#include "tandem/server/service.h"

namespace tandem::server {

/// What distinguishes the endpoints that generate.
struct Endpoint {
  std::string_view id_prefix;
  bool is_chat = false;
  std::variant<PreparedRequest, ApiError> (*prepare)(std::string_view body,
                                                     const ServedModel& model,
                                                     std::string_view model_name) = nullptr;
  std::unique_ptr<AnswerWriter> (*make_writer)(AnswerHead head) = nullptr;
};
inline constexpr Endpoint kChatEndpoint = {"chatcmpl-", true, prepare_chat, make_chat_writer};
inline constexpr Endpoint kCompletionEndpoint = {"cmpl-", false, prepare_completion,
                                                 make_completion_writer};
inline constexpr Endpoint kResponsesEndpoint = {"resp_", true, prepare_responses,
                                                make_responses_writer};

/// One generating request from its body to the end of its answer. It is prepared on a prompt
/// worker and then driven by the engine's events, each of which becomes at most one write. Its
/// choices are requests of the engine: the first is submitted alone, the others at its first
/// token, when they find the prompt in the prefix cache. Ends early when the client leaves: the
/// engine is told, the slots are free within a step.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// Takes the request on, or answers why not. `endpoint` is static. Thread: I/O.
  static void start(std::shared_ptr<Service> service, const Endpoint& endpoint,
                    net::HttpRequest request, std::unique_ptr<Reply> reply);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Ends what the engine still runs; the client gets an error. Thread: any.
  void cancel();

 private:
  struct Choice {
    engine::Request request;  // moved to the engine
    ChoiceOutput output;
    bool leads_prompt = false;  // the first of its prompt, whose tokens count once
    int queued_tokens = 0;      // counted in the queue's budget
    std::chrono::steady_clock::time_point submitted;
    std::optional<std::chrono::steady_clock::time_point> first_token, last_token;
  };

  Generation(std::shared_ptr<Service> service, const Endpoint& endpoint,
             std::unique_ptr<Reply> reply, std::uint64_t first_id);

  void prepare(std::string_view body);          // thread: prompt worker
  void make_choices(PreparedRequest prepared);  // thread: prompt worker
  engine::Request engine_request(const GenerationParams& params, std::size_t index,
                                 const std::vector<TokenId>& prompt) const;
  AnswerHead answer_head(const GenerationParams& params) const;  // thread: prompt worker
  void on_client_gone();                                         // thread: I/O
  void leave_queue(Choice& choice);
  ApiError refusal(const core::Status& status) const;
  core::Status submit(std::size_t index);  // thread: prompt worker for the first, then engine

  // Thread: engine.
  void on_event(std::size_t index, const engine::Event& event);
  bool open();
  void push(std::size_t index, const engine::Event& event);
  void send();
  void fail(const ApiError& error);
  void observe_tokens(Choice& choice, const engine::Event& event) const;
  void observe_end(const Choice& choice, const engine::Event& event);
  Metrics::Times times(const Choice& choice, const engine::Usage& usage) const;
  AnswerUsage usage() const;

  const std::shared_ptr<Service> service_;
  const Endpoint& endpoint_;
  const std::unique_ptr<Reply> reply_;
  const std::uint64_t first_id_;  // of a block of engine ids, one per choice
  std::atomic<bool> is_client_gone_ = false;
  std::atomic<bool> is_cancelled_ = false;
  std::atomic<std::size_t> num_submitted_ = 0;

  std::vector<Choice> choices_;
  std::unique_ptr<AnswerWriter> writer_;
  int n_ = 1;           // choices of each prompt
  int max_tokens_ = 0;  // of the first choice
  bool is_stream_ = false;
  bool is_open_ = false;  // the writer has been opened
  bool is_done_ = false;  // answered, if only by an error
  std::size_t num_finished_ = 0;
  std::string text_;  // bytes of one event
};

}  // namespace tandem::server
