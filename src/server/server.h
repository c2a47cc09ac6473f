#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tandem/chat/template_gemma4.h"
#include "tandem/core/status.h"
#include "tandem/engine/engine.h"
#include "tandem/grammar/compiler.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;           ///< 0: any free port, see Server::port()
  std::string model_name = "gemma-4";  ///< id in /v1/models, and the `model` that requests name
  std::size_t max_body_bytes = 8 * 1024 * 1024;
  std::size_t max_connections = 4096;
  std::size_t max_outbox_bytes = 1024 * 1024;  ///< unsent bytes of one stream; more: cancelled
  int num_prompt_workers = 1;                  ///< threads that parse, render and tokenize requests
  int max_pending_prompts = 256;               ///< requests waiting for them; more get 503
  std::chrono::milliseconds request_timeout{0};  ///< of a whole answer, from its arrival; 0: none
  std::int64_t max_queue_tokens = 0;  ///< prompt tokens waiting for their first step; more get
                                      ///< 429; 0: no limit
  std::string tls_certificate_file;   ///< PEM, with its chain; empty: no TLS
  std::string tls_key_file;
  std::vector<std::string> api_keys;      ///< empty: none is asked for
  std::vector<std::string> cors_origins;  ///< pages that may call from a browser; "*": any
  bool access_log = true;                 ///< one line per request, never its text
};

/// A loaded model, ready to generate. Everything pointed to outlives Server::drain().
struct ServedModel {
  engine::Engine* engine = nullptr;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::shared_ptr<grammar::Compiler> grammars;  ///< of that tokenizer; null: attach() makes one
  /// Nothing: only plain completions are served.
  std::optional<chat::TemplateVariant> template_variant = chat::TemplateVariant::kOpenTurn;
  /// What a request gets that names no temperature, top_k, top_p or min_p; the seed is not used.
  /// The model file's general.sampling.* if it has them, else Gemma's own recommendation.
  kernels::SamplingParams default_sampling = {.temperature = 1.0F, .top_k = 64, .top_p = 0.95F};
  int max_context = 0;                 ///< most tokens of a prompt and its answer
  int max_requests = 0;                ///< most that the engine runs and lets wait; 0: not known
  std::string fingerprint = "tandem";  ///< system_fingerprint: version, weights, backend
};

/// The OpenAI-compatible HTTP API over an engine. Endpoints: POST /v1/chat/completions,
/// POST /v1/completions, GET /v1/models, /v1/models/{id}, /health, /ready, /metrics.
/// A request names `model_name` or no model; other names get 404, so that nobody believes to talk
/// to another model. What OpenAI's API has and this server has not is refused by name, never
/// ignored, and so are members of vLLM's and llama.cpp's that would change an answer; other members
/// are ignored. Beyond OpenAI's: top_k, min_p, ignore_eos, draft_length. With API keys, all but
/// /health, /ready, /metrics and the chat page ask for one. Status codes: 400 what is wrong with a
/// request, 401 a wrong API key, 404 and 405 paths and methods, 413 and 431 size, 429 the engine's
/// queue is full, 503 loading, draining, failed or too many requests to read (429 and 503 with
/// Retry-After), 500 a failure of ours. Threads: one for I/O and a small pool for prompts, both
/// owned. Methods: from one thread.
class Server {
 public:
  /// Listens at once; until attach() everything but /metrics answers 503 and /health says
  /// {"status":"loading"}. kUnavailable when the port cannot be bound.
  static core::Result<std::unique_ptr<Server>> start(const ServerOptions& options);
  /// drain() without patience.
  virtual ~Server() = default;

  /// Serves `model` from now on. Call once.
  virtual void attach(ServedModel model) = 0;

  virtual std::uint16_t port() const = 0;

  /// Ends the service: new requests get 503 at once, running ones may go on for `patience`, then
  /// they are cancelled. Returns true when none had to be. Afterwards the port is closed and the
  /// engine is no longer used. Blocks for `patience` and a few seconds at most.
  virtual bool drain(std::chrono::milliseconds patience) = 0;

  /// False after a device fault of the engine: the process should drain and exit with an error.
  virtual bool healthy() const = 0;
};

}  // namespace tandem::server
