#include <fmt/core.h>

#include <boost/json.hpp>

#include "tandem/bench/bench.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;

json::value to_value(const std::optional<Distribution>& times) {
  if (!times) return nullptr;
  return {{"mean", times->mean}, {"p50", times->p50}, {"p90", times->p90}, {"p99", times->p99}};
}

json::value to_value(const std::optional<Acceptance>& acceptance) {
  if (!acceptance) return nullptr;
  return {{"mean_length", acceptance->mean_length},
          {"per_position", json::value_from(acceptance->per_position)},
          {"source", acceptance->source},
          {"verify_steps", acceptance->verify_steps},
          {"draft_rounds", acceptance->draft_rounds},
          {"drafted_tokens", acceptance->drafted_tokens},
          {"accepted_tokens", acceptance->accepted_tokens}};
}

std::string line(std::string_view name, std::string_view value) {
  return fmt::format("{:<20}{}\n", name, value);
}

std::string times_line(std::string_view name, const std::optional<Distribution>& times) {
  if (!times) return line(name, "-");
  return line(name, fmt::format("mean {:<9.1f} p50 {:<9.1f} p90 {:<9.1f} p99 {:.1f}", times->mean,
                                times->p50, times->p90, times->p99));
}

std::string acceptance_text(const std::optional<Acceptance>& acceptance) {
  if (!acceptance) return "not known";
  std::string text = fmt::format("mean length {:.2f}", acceptance->mean_length);
  if (acceptance->per_position.empty()) return text;
  text += ", by position";
  for (const double rate : acceptance->per_position) text += fmt::format(" {:.3f}", rate);
  return text;
}

std::string memory_text(const BenchReport& report) {
  if (!report.peak_memory_bytes) return "not known (give --pid)";
  return fmt::format(
      "{:.1f} MB ({})", static_cast<double>(*report.peak_memory_bytes) / 1e6,
      report.peak_memory_source == "pid" ? "VmHWM of the process" : "largest seen in /metrics");
}

double per_request(std::uint64_t tokens, int requests) {
  return requests > 0 ? static_cast<double>(tokens) / requests : 0.0;
}

}  // namespace

std::string to_table(const BenchReport& report) {
  std::string out = line("server", fmt::format("{}, model {}", report.url, report.model));
  out += line("completed / asked", fmt::format("{} / {}", report.completed, report.asked));
  if (report.cancelled > 0) {
    const std::string tokens =
        report.completed > 0
            ? fmt::format("about {:.0f} tokens of theirs count", report.cut_completion_tokens)
            : "how many tokens they had is not known";
    out += line("cancelled",
                fmt::format("{} (running when the time was over; {})", report.cancelled, tokens));
  }
  out += line("errors", fmt::format("{}", report.errors()));
  for (const auto& [kind, count] : report.errors_by_kind) {
    out += line("  " + kind, fmt::format("{}, first: {}", count, report.error_examples.at(kind)));
  }
  out += line("wall",
              fmt::format("{:.1f} s{}", report.wall_s,
                          report.is_cut_short ? " (stopped before all prompts were done)" : ""));
  out += line("prefill tok/s",
              fmt::format("{:<9.1f} (while prefilling {:.1f})", report.prefill_tokens_per_s,
                          report.prefill_phase_tokens_per_s));
  out += line("decode tok/s",
              fmt::format("{:<9.1f} (while decoding {:.1f})", report.decode_tokens_per_s,
                          report.decode_phase_tokens_per_s));
  out += times_line("TTFT ms", report.ttft_ms);
  out += times_line("first event ms", report.first_event_ms);
  out += times_line("TPOT ms", report.tpot_ms);
  out += times_line("latency ms", report.latency_ms);
  out += line("peak memory", memory_text(report));
  out += line("acceptance", acceptance_text(report.acceptance));
  out += line("tokens a request",
              fmt::format("prompt {:.1f}, output {:.1f}",
                          per_request(report.prompt_tokens, report.completed),
                          per_request(report.completion_tokens, report.completed)));
  return out;
}

std::string to_json(const BenchReport& report) {
  json::object out;
  out["completed"] = report.completed;
  out["asked"] = report.asked;
  out["errors"] = report.errors();
  out["wall_s"] = report.wall_s;
  out["prefill_tokens_per_s"] = report.prefill_tokens_per_s;
  out["decode_tokens_per_s"] = report.decode_tokens_per_s;
  out["ttft_ms"] = to_value(report.ttft_ms);
  out["tpot_ms"] = to_value(report.tpot_ms);
  out["peak_memory_bytes"] =
      report.peak_memory_bytes ? json::value(*report.peak_memory_bytes) : json::value(nullptr);
  out["acceptance"] = to_value(report.acceptance);
  out["cancelled"] = report.cancelled;
  out["errors_by_kind"] = json::value_from(report.errors_by_kind);
  out["error_examples"] = json::value_from(report.error_examples);
  out["finish_reasons"] = json::value_from(report.finish_reasons);
  out["is_cut_short"] = report.is_cut_short;
  out["prompt_tokens"] = report.prompt_tokens;
  out["completion_tokens"] = report.completion_tokens;
  out["cut_prompt_tokens"] = report.cut_prompt_tokens;
  out["cut_completion_tokens"] = report.cut_completion_tokens;
  out["prefill_phase_tokens_per_s"] = report.prefill_phase_tokens_per_s;
  out["decode_phase_tokens_per_s"] = report.decode_phase_tokens_per_s;
  out["first_event_ms"] = to_value(report.first_event_ms);
  out["latency_ms"] = to_value(report.latency_ms);
  out["peak_memory_source"] = report.peak_memory_source.empty()
                                  ? json::value(nullptr)
                                  : json::value(report.peak_memory_source);
  out["url"] = report.url;
  out["model"] = report.model;
  return json::serialize(out);
}

}  // namespace tandem::bench
