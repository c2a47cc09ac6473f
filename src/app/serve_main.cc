#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>

#include "tandem/app/commands.h"
#include "tandem/app/loaded_model.h"
#include "tandem/app/memory_need.h"
#include "tandem/app/stop_signals.h"
#include "tandem/core/log.h"
#include "tandem/model/model_files.h"
#include "tandem/server/access.h"
#include "tandem/server/server.h"

namespace tandem::app {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{100};
constexpr milliseconds kDrainPatience{30'000};

/// A name for clients, of which some end it at a space: vLLM's benchmark, in our metrics.
std::string without_spaces(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c <= ' '; }, '-');
  return name;
}

/// Says what can be said against the options before a port is taken. The id in /v1/models: the
/// name that the model gives itself, else the file's.
core::Result<std::string> check_model(const ModelOptions& options) {
  TANDEM_ASSIGN(const auto files, model::ModelFiles::open(options.model));
  TANDEM_ASSIGN(const model::ModelConfig config, files->config());
  if (options.kv_memory_bytes > 0) TANDEM_TRY(check_kv_memory(config, options.kv_memory_bytes));
  if (!options.draft.empty()) TANDEM_TRY(model::ModelFiles::open(options.draft).status());
  const std::string name = files->name();
  return without_spaces(name.empty() ? std::filesystem::path(options.model).stem().string() : name);
}

/// An IPv6 address needs brackets in a URL.
std::string url_of(const ServeOptions& options, std::uint16_t port) {
  const bool is_v6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", options.tls_certificate.empty() ? "http" : "https",
                     is_v6 ? "[" : "", options.host, is_v6 ? "]" : "", port);
}

server::ServedModel served(const LoadedModel& loaded, const ModelOptions& options) {
  server::ServedModel out;
  out.engine = loaded.engine.get();
  out.tokenizer = loaded.tokenizer;
  out.template_variant = loaded.template_variant;
  out.default_sampling = loaded.sampling;
  out.max_context = loaded.max_context;
  out.max_requests = options.max_sequences + options.max_queue;
  out.fingerprint = loaded.fingerprint;
  return out;
}

/// Waits for the model while the server already answers 503. Ends the process on a signal: packing
/// cannot be interrupted, and nothing is being served yet.
core::Result<LoadedModel> load_while_listening(const ModelOptions& options, StopSignals& signals) {
  auto loading = std::async(std::launch::async, [&options] { return load_model(options); });
  while (loading.wait_for(milliseconds(0)) != std::future_status::ready) {
    if (signals.wait_for(kPollInterval)) {
      core::log_info("stopped while loading");
      std::_Exit(0);
    }
  }
  return loading.get();
}

/// Says if next to no draft is right: it costs time and changes no text, so nobody would notice.
/// True: it has been judged and need not be again.
bool judge_drafts(const engine::EngineStats& stats) {
  constexpr double kEnough = 500, kFewest = 0.05;
  const auto drafted = static_cast<double>(stats.drafted_at.front());
  if (drafted < kEnough) return false;
  const double share = static_cast<double>(stats.accepted_at.front()) / drafted;
  if (share < kFewest) {
    core::log_warning(
        fmt::format("{:.1f} % of the first {:.0f} first drafts were right: is --draft the drafter "
                    "that was made for this model?",
                    100 * share, drafted));
  }
  return true;
}

}  // namespace

int serve_main(const ServeOptions& options) {
  StopSignals signals;
  explain_lost_files();
  std::signal(SIGPIPE, SIG_IGN);  // a client that leaves is an error code, not a signal
  auto name = check_model(options.model);
  if (!name.ok()) return fail(name.status());
  if (!options.name.empty()) *name = options.name;
  // Clients, /metrics and tables of `bench` show the name: nobody shall take the text for real.
  if (!options.model.draft_acceptance.empty()) *name += "-synthetic-acceptance";

  std::optional<LoadedModel> loaded;  // outlives the server, which uses it until it has drained
  server::ServerOptions server_options;
  server_options.host = options.host;
  server_options.port = options.port;
  server_options.model_name = *name;
  server_options.tls_certificate_file = options.tls_certificate;
  server_options.tls_key_file = options.tls_key;
  server_options.cors_origins = options.cors_origins;
  server_options.max_queue_tokens = options.max_queue_tokens;
  server_options.request_timeout =
      milliseconds(static_cast<std::int64_t>(options.request_timeout_s * 1000));
  if (!options.api_key_file.empty()) {
    auto keys = server::load_api_keys(options.api_key_file);
    if (!keys.ok()) return fail(keys.status());
    server_options.api_keys = std::move(keys).value();
  }
  auto server = server::Server::start(server_options);
  if (!server.ok()) return fail(server.status());
  const std::string url = url_of(options, (*server)->port());
  core::log_info(fmt::format("listening on {}, loading", url));

  auto model = load_while_listening(options.model, signals);
  if (!model.ok()) return fail(model.status());
  loaded.emplace(std::move(model).value());
  (*server)->attach(served(*loaded, options.model));
  core::log_info(fmt::format("ready: {}/v1, model \"{}\"", url, *name));

  bool is_stopped = false;
  bool is_judged = !loaded->model->has_drafter() || !options.model.draft_acceptance.empty();
  while (!is_stopped && (*server)->healthy()) {
    is_stopped = signals.wait_for(kPollInterval);
    is_judged = is_judged || judge_drafts(loaded->engine->stats());
  }
  core::log_info("draining: running requests may finish, new ones are refused");
  const bool is_complete = (*server)->drain(kDrainPatience);
  if (!is_judged) judge_drafts(loaded->engine->stats());
  if (!is_complete) core::log_warning("requests were still running at the end of the drain");
  server->reset();
  if (!is_stopped) {
    return fail(core::internal_error("the compute device failed; see the log, then restart"));
  }
  core::log_info("stopped");
  return 0;
}

}  // namespace tandem::app
