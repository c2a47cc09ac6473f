#include "tandem/bench/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "tandem/bench/dataset.h"
#include "tandem/bench/json_util.h"
#include "tandem/bench/load_run.h"
#include "tandem/bench/process_memory.h"
#include "tandem/bench/prometheus_text.h"
#include "tandem/core/print.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;
using core::Result;

constexpr std::chrono::seconds kQuestionTimeout{10};

Result<json::object> read_extra_body(const std::string& text) {
  if (text.empty()) return json::object();
  boost::system::error_code parse_error;
  const json::value value = json::parse(text, parse_error);
  if (parse_error || !value.is_object()) {
    return core::invalid_argument(
        fmt::format("the extra body '{}' is no JSON object; give one as {{\"seed\":1}}", text));
  }
  for (const char* own :
       {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}) {
    if (value.get_object().contains(own)) {
      return core::invalid_argument(fmt::format(
          "the extra body names '{}', which the benchmark sets itself; leave it out", own));
    }
  }
  return value.get_object();
}

Result<Target> make_target(const BenchOptions& options) {
  Target target;
  TANDEM_ASSIGN(target.url, net::parse_url(options.url));
  std::string& path = target.url.path;
  if (path == "/v1" || path.ends_with("/v1")) path.resize(path.size() - 3);
  target.model = options.model;
  target.api_key = options.api_key;
  TANDEM_ASSIGN(target.extra_members, read_extra_body(options.extra_body));
  return target;
}

/// The name of the first model that the server offers. Asked even when the user names a model: a
/// server that is not there is found out before the run.
Result<std::string> first_model(const Target& target, const std::string& url) {
  const auto answer =
      net::fetch(target.url, make_request(target, "GET", "/v1/models", ""), kQuestionTimeout);
  if (!answer.ok()) {
    return core::unavailable(fmt::format("{}: the server does not answer ({}); start it first", url,
                                         answer.status().message()));
  }
  boost::system::error_code parse_error;
  const json::value list = json::parse(answer->body, parse_error);
  const json::value* models = parse_error ? nullptr : member(&list, "data");
  if (answer->status == 200 && models != nullptr && models->is_array() &&
      !models->get_array().empty()) {
    const std::string_view id = as_text(member(&models->get_array().front(), "id"));
    if (!id.empty()) return std::string(id);
  }
  return core::failed_precondition(
      fmt::format("{}: /v1/models (HTTP {}) names no model; wait until the server has loaded, or "
                  "name one with --model",
                  url, answer->status));
}

/// The server's draft counters, if it shows any.
std::optional<DraftCounters> read_counters(const Target& target) {
  const auto page =
      net::fetch(target.url, make_request(target, "GET", "/metrics", ""), kQuestionTimeout);
  if (!page.ok() || page->status != 200) return std::nullopt;
  return DraftCounters::read(PrometheusText::parse(page->body));
}

double rate(double amount, double per) {
  return per > 0.0 ? amount / per : 0.0;
}

/// What each of the completed requests had.
void fill_times(const std::vector<Answer>& completed, BenchReport* report) {
  std::vector<double> ttft, first_event, tpot, latency;
  for (const Answer& request : completed) {
    const std::uint64_t n = request.usage.completion_tokens;
    report->prompt_tokens += request.usage.prompt_tokens;
    report->completion_tokens += n;
    latency.push_back((request.end_at - request.sent_at) * 1000.0);
    if (request.first_event_at) {
      first_event.push_back((*request.first_event_at - request.sent_at) * 1000.0);
    }
    if (!request.first_content_at) continue;  // it stopped before any text
    ttft.push_back((*request.first_content_at - request.sent_at) * 1000.0);
    if (n < 2) continue;
    const double decode_s = request.end_at - *request.first_content_at;
    tpot.push_back(decode_s * 1000.0 / static_cast<double>(n - 1));
  }
  report->ttft_ms = summarize(std::move(ttft));
  report->first_event_ms = summarize(std::move(first_event));
  report->tpot_ms = summarize(std::move(tpot));
  report->latency_ms = summarize(std::move(latency));
}

/// Tokens of cut requests, by the bytes a token of the completed ones had.
void estimate_cut(const Observations& seen, BenchReport* report) {
  std::size_t prompt_bytes = 0, text_bytes = 0, cut_prompt_bytes = 0, cut_text_bytes = 0;
  for (const Answer& request : seen.completed) {
    prompt_bytes += request.prompt_bytes;
    text_bytes += request.text_bytes;
  }
  for (const Answer& request : seen.cut) {
    if (request.first_content_at) cut_prompt_bytes += request.prompt_bytes;
    cut_text_bytes += request.text_bytes;
  }
  const auto estimate = [](std::uint64_t tokens, std::size_t bytes, std::size_t cut_bytes) {
    return static_cast<double>(cut_bytes) *
           rate(static_cast<double>(tokens), static_cast<double>(bytes));
  };
  report->cut_prompt_tokens = estimate(report->prompt_tokens, prompt_bytes, cut_prompt_bytes);
  report->cut_completion_tokens = estimate(report->completion_tokens, text_bytes, cut_text_bytes);
}

/// Needs the counts of tokens.
void fill_rates(const Observations& seen, BenchReport* report) {
  std::vector<std::pair<double, double>> waiting, decoding;
  std::uint64_t first_tokens = 0;
  for (const std::vector<Answer>* answers : {&seen.completed, &seen.cut}) {
    for (const Answer& request : *answers) {
      waiting.emplace_back(request.sent_at, request.first_content_at.value_or(request.end_at));
      if (!request.first_content_at) continue;
      decoding.emplace_back(*request.first_content_at, request.end_at);
      ++first_tokens;
    }
  }
  const double prompt = static_cast<double>(report->prompt_tokens) + report->cut_prompt_tokens;
  const double completion =
      static_cast<double>(report->completion_tokens) + report->cut_completion_tokens;
  report->prefill_tokens_per_s = rate(prompt, report->wall_s);
  report->decode_tokens_per_s = rate(completion, report->wall_s);
  report->prefill_phase_tokens_per_s = rate(prompt, covered_time(std::move(waiting)));
  report->decode_phase_tokens_per_s =
      rate(std::max(0.0, completion - static_cast<double>(first_tokens)),
           covered_time(std::move(decoding)));
}

BenchReport make_report(const BenchOptions& options, const Target& target, Observations seen) {
  BenchReport report;
  report.url = options.url;
  report.model = target.model;
  report.asked = seen.asked;
  report.completed = static_cast<int>(seen.completed.size());
  report.cancelled = static_cast<int>(seen.cut.size());
  report.errors_by_kind = std::move(seen.errors_by_kind);
  report.error_examples = std::move(seen.error_examples);
  report.finish_reasons = std::move(seen.finish_reasons);
  report.wall_s = seen.wall_s;
  report.is_cut_short = seen.is_cut_short;
  fill_times(seen.completed, &report);
  estimate_cut(seen, &report);
  fill_rates(seen, &report);
  if (seen.peak_memory_bytes > 0) {
    report.peak_memory_bytes = seen.peak_memory_bytes;
    report.peak_memory_source = options.pid > 0 ? "pid" : "metrics";
  }
  std::uint64_t tokens_after_first = 0;
  for (const Answer& request : seen.completed) {
    const std::uint64_t n = request.usage.completion_tokens;
    tokens_after_first += n > 0 ? n - 1 : 0;
  }
  report.acceptance = acceptance_from_timings(seen.draft_timings.drafted,
                                              seen.draft_timings.accepted, tokens_after_first);
  return report;
}

}  // namespace

int BenchReport::errors() const {
  int total = 0;
  for (const auto& [kind, count] : errors_by_kind) total += count;
  return total;
}

Result<BenchReport> run_bench(const BenchOptions& options) {
  TANDEM_CHECK(options.prompts > 0 && options.concurrency > 0 && options.max_tokens > 0,
               "the command line checks its numbers");
  TANDEM_ASSIGN(Target target, make_target(options));
  TANDEM_ASSIGN(std::vector<std::string> prompts,
                read_sharegpt(options.dataset, static_cast<std::size_t>(options.prompts)));
  if (static_cast<int>(prompts.size()) < options.prompts) {
    core::print(stderr, fmt::format("{} holds {} prompts; that many are sent instead of {}\n",
                                    options.dataset, prompts.size(), options.prompts));
  }
  if (options.pid > 0 && !peak_memory_of_tree(options.pid)) {
    return core::not_found(
        fmt::format("process {} does not exist; give --pid the server's process id", options.pid));
  }
  const auto offered = first_model(target, options.url);
  if (target.model.empty() || offered.status().code() == core::Code::kUnavailable) {
    TANDEM_ASSIGN(target.model, offered);
  }
  const auto before = read_counters(target);
  options.on_start();
  Observations seen = LoadRun(options, target, std::move(prompts)).run();
  BenchReport report = make_report(options, target, std::move(seen));
  const auto after = before ? read_counters(target) : std::nullopt;
  if (after) {
    if (auto measured = acceptance_between(*before, *after)) report.acceptance = measured;
  }
  return report;
}

}  // namespace tandem::bench
