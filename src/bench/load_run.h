#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tandem/bench/bench.h"
#include "tandem/bench/chat_stream.h"
#include "tandem/bench/progress.h"
#include "tandem/net/http_client.h"

namespace tandem::bench {

/// A server that a run talks to: where, as what, with which credentials.
struct Target {
  net::Url url;  ///< without /v1
  std::string model;
  std::string api_key;
  boost::json::object extra_members;  ///< of every request's body
};

/// An HTTP request with the target's headers.
net::HttpRequest make_request(const Target& target, std::string method, std::string path,
                              std::string body);

/// One request whose answer ended in order or was cut off by the end of the time. Times in seconds
/// from the start of the run.
struct Answer {
  double sent_at = 0.0;
  std::optional<double> first_event_at, first_content_at;
  double end_at = 0.0;
  std::size_t prompt_bytes = 0, text_bytes = 0;
  ChatStream::Usage usage;  ///< of an answer that ended
};

/// Everything that a run observed.
struct Observations {
  std::vector<Answer> completed, cut;
  int asked = 0;
  std::map<std::string, int> errors_by_kind;
  std::map<std::string, std::string> error_examples;
  std::map<std::string, int> finish_reasons;
  double wall_s = 0.0;
  bool is_cut_short = false;
  std::uint64_t peak_memory_bytes = 0;  ///< 0: not known
  ChatStream::DraftTimings draft_timings;
};

/// The closed loop: `concurrency` requests are always on their way until the prompts are used up
/// or the time is over. Thread: one.
class LoadRun {
 public:
  LoadRun(const BenchOptions& options, const Target& target, std::vector<std::string> prompts);
  ~LoadRun();

  /// Blocks until the run is over.
  Observations run();

 private:
  struct InFlight {
    double sent_at = 0.0;
    std::size_t prompt_bytes = 0;
    ChatStream stream;
  };

  double now() const;
  int num_running() const { return static_cast<int>(running_.size()); }
  void send_next();
  void on_done(const std::shared_ptr<InFlight>& request,
               const core::Result<net::ClientResponse>& response);
  static Answer answer_of(const InFlight& request, double end_at);
  void on_error(std::string kind, std::string message);
  void on_tick();
  void sample_memory();
  std::string request_body(const std::string& prompt) const;

  const BenchOptions& options_;
  const Target& target_;
  const std::vector<std::string> prompts_;
  std::unique_ptr<net::HttpClient> client_;
  std::chrono::steady_clock::time_point start_;
  Progress progress_;
  Observations seen_;
  std::size_t next_prompt_ = 0;
  std::set<std::shared_ptr<InFlight>> running_;
  int errors_ = 0;
  double completion_tokens_ = 0.0;
  double last_answer_at_ = 0.0;
  bool is_polling_metrics_ = false;
  bool is_stopping_ = false;
};

}  // namespace tandem::bench
