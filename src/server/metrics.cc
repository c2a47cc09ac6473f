#include "tandem/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "tandem/server/process_metrics.h"

namespace tandem::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;
using Labels = std::vector<ClientMetric::Label>;

// vLLM's boundaries, with finer ones below for small models.
const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.15,  0.25,  0.4,  0.5,  0.75, 1,    2.5,  5,
                                    7.5,   10,    20,   40,   80,   160,  640,  2560};
const Buckets kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                               0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const Buckets kRequestSeconds = {0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,  15,
                                 20,  30,  40,  50,  60, 120, 240, 480, 960, 1920};
const Buckets kChoices = {1, 2, 5, 10, 20};
const Buckets kTokenCounts = {1,   2,    5,    10,   20,    50,    100,  200,
                              500, 1000, 2000, 5000, 10000, 20000, 50000};

double seconds(Metrics::Duration elapsed) {
  return std::chrono::duration<double>(elapsed).count();
}

/// Builds families out of plain numbers.
class Page {
 public:
  explicit Page(Labels labels) : labels_(std::move(labels)) {}

  void counter(std::string name, std::string help, double value) {
    ClientMetric metric;
    metric.label = labels_;
    metric.counter.value = value;
    add(std::move(name), std::move(help), MetricType::Counter, {std::move(metric)});
  }
  void gauge(std::string name, std::string help, double value) {
    ClientMetric metric;
    metric.label = labels_;
    metric.gauge.value = value;
    add(std::move(name), std::move(help), MetricType::Gauge, {std::move(metric)});
  }
  /// counts: by bound, the last one of what is above them all.
  void histogram(std::string name, std::string help, std::span<const int> bounds,
                 std::span<const std::uint64_t> counts, double sum) {
    ClientMetric metric;
    metric.label = labels_;
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      cumulative += counts[i];
      const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = sum;
    add(std::move(name), std::move(help), MetricType::Histogram, {std::move(metric)});
  }
  /// A gauge of 1 whose labels say something.
  void info(std::string name, std::string help, Labels labels) {
    ClientMetric metric;
    metric.label = labels_;
    std::move(labels.begin(), labels.end(), std::back_inserter(metric.label));
    metric.gauge.value = 1;
    add(std::move(name), std::move(help), MetricType::Gauge, {std::move(metric)});
  }
  /// One counter per draft position, from 0.
  void counters_by_position(std::string name, std::string help,
                            std::span<const std::uint64_t> values) {
    std::vector<ClientMetric> metrics;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ClientMetric& metric = metrics.emplace_back();
      metric.label = labels_;
      metric.label.push_back({"position", std::to_string(i)});
      metric.counter.value = static_cast<double>(values[i]);
    }
    add(std::move(name), std::move(help), MetricType::Counter, std::move(metrics));
  }
  void append(std::vector<MetricFamily> families) {
    std::move(families.begin(), families.end(), std::back_inserter(families_));
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  void add(std::string name, std::string help, MetricType type, std::vector<ClientMetric> metrics) {
    families_.push_back({std::move(name), std::move(help), type, std::move(metrics)});
  }

  Labels labels_;
  std::vector<MetricFamily> families_;
};

double total(std::span<const std::uint64_t> values) {
  std::uint64_t sum = 0;
  for (const std::uint64_t value : values) sum += value;
  return static_cast<double>(sum);
}

/// The KV memory as routers weigh it: pages of one text of full length.
void add_cache_config(Page& page, const engine::EngineStats& stats) {
  const int pages = stats.kv_capacity_tokens / std::max(1, stats.kv_page_tokens);
  page.info("vllm:cache_config_info", "How the KV memory is laid out.",
            {{"block_size", std::to_string(stats.kv_page_tokens)},
             {"num_gpu_blocks", std::to_string(pages)},
             {"num_cpu_blocks", "0"},
             {"kv_cache_size_tokens", std::to_string(stats.kv_capacity_tokens)},
             {"kv_cache_memory_bytes", std::to_string(stats.kv_bytes_total)},
             {"enable_prefix_caching", stats.prefix_cache ? "True" : "False"}});
}

/// Under the present names and those that older routers and dashboards read.
void add_prefix_cache(Page& page, const engine::EngineStats& stats) {
  const auto queries = static_cast<double>(stats.prompt_tokens);
  const auto hits = static_cast<double>(stats.cached_tokens);
  for (const std::string prefix : {"vllm:", "vllm:gpu_"}) {
    page.counter(prefix + "prefix_cache_queries_total",
                 "Prompt tokens looked up in the prefix cache.", queries);
    page.counter(prefix + "prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
                 hits);
  }
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.", hits);
  page.gauge("vllm:gpu_prefix_cache_hit_rate", "Share of prompt tokens found, from 0 to 1.",
             hits / std::max(1.0, queries));
}

void add_engine(Page& page, const engine::EngineStats& stats) {
  const auto n = [](auto value) {
    return static_cast<double>(value);
  };
  page.gauge("vllm:num_requests_running", "Requests being generated.", n(stats.running));
  page.gauge("vllm:num_requests_waiting", "Requests in the queue.", n(stats.waiting));
  const double kv_usage = n(stats.kv_bytes_used) / std::max(1.0, n(stats.kv_bytes_total));
  for (const char* name : {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}) {
    page.gauge(name, "Share of the KV memory in use, from 0 to 1.", kv_usage);  // new and old name
  }
  page.counter("vllm:prompt_tokens_total", "Prompt tokens.", n(stats.prompt_tokens));
  page.counter("vllm:generation_tokens_total", "Generated tokens.", n(stats.generated_tokens));
  add_prefix_cache(page, stats);
  add_cache_config(page, stats);
  page.counter("vllm:num_preemptions_total", "Requests preempted for lack of KV memory.",
               n(stats.preemptions));
  page.histogram("vllm:iteration_tokens_total", "Prompt rows and generated tokens of a step.",
                 engine::kStepTokenBounds, stats.steps_by_tokens, n(stats.step_tokens));
  page.counter("vllm:spec_decode_num_drafts_total", "Spans verified with at least one draft.",
               n(stats.draft_rounds));
  page.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.",
               total(stats.drafted_at));
  page.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.",
               total(stats.accepted_at));
  page.counters_by_position("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                            "Draft tokens accepted, by draft position.", stats.accepted_at);
  page.counters_by_position("tandem:spec_decode_drafted_tokens_per_pos_total",
                            "Draft tokens verified, by draft position.", stats.drafted_at);
  page.counter("tandem:verify_steps_total", "Decode spans run, with or without drafts.",
               n(stats.verify_steps));
  page.counter("tandem:steps_total", "Steps of the engine.", n(stats.steps));
  page.counter("tandem:preemptions_total", "Requests preempted for lack of KV memory.",
               n(stats.preemptions));
  page.counter("tandem:busy_seconds_total", "Time spent in steps.", stats.busy_seconds);
  page.counter("tandem:requests_finished_total", "Requests finished.", n(stats.requests_finished));
  page.counter("tandem:requests_failed_total", "Requests failed.", n(stats.requests_failed));
  page.counter("tandem:requests_cancelled_total", "Requests cancelled, most by their clients.",
               n(stats.requests_cancelled));
  page.counter("tandem:requests_rejected_total", "Requests refused, most for a full queue.",
               n(stats.requests_rejected));
  page.gauge("tandem:kv_used_bytes", "KV memory of running requests.", n(stats.kv_bytes_used));
  page.gauge("tandem:kv_cached_bytes", "KV memory kept for reuse.", n(stats.kv_bytes_cached));
  page.gauge("tandem:kv_total_bytes", "KV memory at most.", n(stats.kv_bytes_total));
  page.gauge("tandem:healthy", "0 after a device fault.", stats.healthy ? 1 : 0);
}

void add_process(Page& page) {
  const ProcessUsage usage = process_usage();
  page.gauge("process_resident_memory_bytes", "Resident memory.",
             static_cast<double>(usage.resident_bytes));
  page.gauge("process_peak_resident_memory_bytes", "Most resident memory so far.",
             static_cast<double>(usage.peak_resident_bytes));
  page.counter("process_cpu_seconds_total", "User and system time.", usage.cpu_seconds);
  page.gauge("process_start_time_seconds", "Start of the process, Unix time.",
             usage.start_time_seconds);
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const std::string& model_name) : labels{{"model_name", model_name}} {}

  prometheus::Histogram& histogram(std::string name, std::string help, const Buckets& buckets) {
    return prometheus::BuildHistogram()
        .Name(std::move(name))
        .Help(std::move(help))
        .Register(registry)
        .Add(labels, buckets);
  }

  prometheus::Registry registry;
  prometheus::Labels labels;
  prometheus::Histogram& first_token =
      histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", kFirstTokenSeconds);
  prometheus::Histogram& next_token =
      histogram("vllm:inter_token_latency_seconds",
                "Time between tokens; those of one step share its time.", kTokenSeconds);
  prometheus::Histogram& request_seconds = histogram(
      "vllm:e2e_request_latency_seconds", "Arrival to the end of the answer.", kRequestSeconds);
  prometheus::Histogram& prompt_tokens =
      histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokenCounts);
  prometheus::Histogram& generated_tokens =
      histogram("vllm:request_generation_tokens", "Generated tokens of a request.", kTokenCounts);
  prometheus::Histogram& most_tokens =
      histogram("vllm:request_max_num_generation_tokens",
                "Generated tokens of a request's longest choice.", kTokenCounts);
  prometheus::Histogram& allowed_tokens = histogram(
      "vllm:request_params_max_tokens",
      "Tokens that a choice might have: max_tokens, or what the context left.", kTokenCounts);
  prometheus::Histogram& choices =
      histogram("vllm:request_params_n", "Choices of a request.", kChoices);
  prometheus::Histogram& computed_prompt_tokens =
      histogram("vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were not in the prefix cache.", kTokenCounts);
  prometheus::Histogram& queue_seconds =
      histogram("vllm:request_queue_time_seconds", "Arrival to the first step.", kRequestSeconds);
  prometheus::Histogram& prefill_seconds =
      histogram("vllm:request_prefill_time_seconds", "First step to first token.", kRequestSeconds);
  prometheus::Histogram& decode_seconds =
      histogram("vllm:request_decode_time_seconds", "First token to last token.", kRequestSeconds);
  prometheus::Histogram& request_token_seconds =
      histogram("vllm:request_time_per_output_token_seconds",
                "First token to last token, by the tokens after the first.", kTokenSeconds);
  prometheus::Histogram& inference_seconds = histogram(
      "vllm:request_inference_time_seconds", "First step to last token.", kRequestSeconds);
  prometheus::Family<prometheus::Counter>& ends = prometheus::BuildCounter()
                                                      .Name("vllm:request_success_total")
                                                      .Help("Requests ended, by reason.")
                                                      .Register(registry);
  prometheus::Family<prometheus::Counter>& responses = prometheus::BuildCounter()
                                                           .Name("tandem:http_responses_total")
                                                           .Help("Answers, by HTTP status.")
                                                           .Register(registry);
};

Metrics::Metrics(const std::string& model_name) : impl_(std::make_unique<Impl>(model_name)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    impl_->ends.Add({{"model_name", model_name}, {"finished_reason", reason}});
  }
}

Metrics::~Metrics() = default;

void Metrics::observe_first_token(Duration elapsed) {
  impl_->first_token.Observe(seconds(elapsed));
}

void Metrics::observe_next_tokens(Duration elapsed, int num_tokens) {
  const double share = seconds(elapsed) / num_tokens;
  for (int i = 0; i < num_tokens; ++i) impl_->next_token.Observe(share);
}

void Metrics::observe_end(std::string_view reason, const Times& times, const engine::Usage& usage) {
  prometheus::Labels labels = impl_->labels;
  labels["finished_reason"] = std::string(reason);
  impl_->ends.Add(labels).Increment();
  impl_->request_seconds.Observe(seconds(times.end));
  impl_->prompt_tokens.Observe(usage.prompt_tokens);
  impl_->generated_tokens.Observe(usage.completion_tokens);
  if (!times.first_token || !times.last_token) return;
  impl_->computed_prompt_tokens.Observe(usage.prompt_tokens - usage.cached_tokens);
  impl_->queue_seconds.Observe(seconds(times.first_step));
  impl_->prefill_seconds.Observe(seconds(*times.first_token - times.first_step));
  const double decode_seconds = seconds(*times.last_token - *times.first_token);
  impl_->decode_seconds.Observe(decode_seconds);
  if (usage.completion_tokens > 1) {
    impl_->request_token_seconds.Observe(decode_seconds / (usage.completion_tokens - 1));
  }
  impl_->inference_seconds.Observe(seconds(*times.last_token - times.first_step));
}

void Metrics::observe_request(int n, int max_tokens, int most_tokens) {
  impl_->choices.Observe(n);
  impl_->allowed_tokens.Observe(max_tokens);
  impl_->most_tokens.Observe(most_tokens);
}

void Metrics::count_response(int http_status) {
  impl_->responses.Add({{"code", std::to_string(http_status)}}).Increment();
}

std::string Metrics::text(const engine::EngineStats* stats) const {
  Labels labels;
  for (const auto& [name, value] : impl_->labels) labels.push_back({name, value});
  Page page(labels);
  if (stats != nullptr) add_engine(page, *stats);
  std::vector<MetricFamily> families = impl_->registry.Collect();
  const auto next_token = std::find_if(
      families.begin(), families.end(),
      [](const MetricFamily& family) { return family.name == "vllm:inter_token_latency_seconds"; });
  if (next_token != families.end()) {  // older dashboards know it under another name
    MetricFamily alias = *next_token;
    alias.name = "vllm:time_per_output_token_seconds";
    families.push_back(std::move(alias));
  }
  page.append(std::move(families));
  Page process({});  // the process has no model
  add_process(process);
  return page.text() + process.text();
}

}  // namespace tandem::server
