#include "tandem/server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <regex>

namespace tandem::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

engine::EngineStats some_stats() {
  engine::EngineStats stats;
  stats.prompt_tokens = 100;
  stats.cached_tokens = 40;
  stats.generated_tokens = 30;
  stats.verify_steps = 20;
  stats.draft_rounds = 15;
  stats.drafted_at = {15, 10, 5};
  stats.accepted_at = {9, 4, 1};
  stats.running = 3;
  stats.waiting = 2;
  stats.preemptions = 1;
  stats.steps = 50;
  stats.step_tokens = 900;
  stats.steps_by_tokens = {10, 20, 0, 0, 0, 15};
  stats.steps_by_tokens.back() = 5;
  stats.kv_bytes_used = 250;
  stats.kv_bytes_total = 1000;
  stats.kv_page_tokens = 32;
  stats.kv_capacity_tokens = 330;
  stats.prefix_cache = true;
  return stats;
}

TEST(Metrics, ShowsTheEngineUnderTheNamesThatDashboardsRead) {
  const Metrics metrics("m");
  const engine::EngineStats stats = some_stats();
  const std::string text = metrics.text(&stats);
  for (const char* line : {
           "# TYPE vllm:num_requests_running gauge\n",
           "vllm:num_requests_running{model_name=\"m\"} 3\n",
           "vllm:num_requests_waiting{model_name=\"m\"} 2\n",
           "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25\n",
           "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n",
           "# TYPE vllm:prompt_tokens_total counter\n",
           "vllm:prompt_tokens_total{model_name=\"m\"} 100\n",
           "vllm:generation_tokens_total{model_name=\"m\"} 30\n",
           "vllm:prefix_cache_queries_total{model_name=\"m\"} 100\n",
           "vllm:prefix_cache_hits_total{model_name=\"m\"} 40\n",
           "vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 100\n",
           "vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 40\n",
           "vllm:prompt_tokens_cached_total{model_name=\"m\"} 40\n",
           "vllm:gpu_prefix_cache_hit_rate{model_name=\"m\"} 0.4\n",
           "# TYPE vllm:cache_config_info gauge\n",
           "vllm:cache_config_info{model_name=\"m\",block_size=\"32\",num_gpu_blocks=\"10\","
           "num_cpu_blocks=\"0\",kv_cache_size_tokens=\"330\",kv_cache_memory_bytes=\"1000\","
           "enable_prefix_caching=\"True\"} 1\n",
           "vllm:spec_decode_num_drafts_total{model_name=\"m\"} 15\n",
           "vllm:spec_decode_num_draft_tokens_total{model_name=\"m\"} 30\n",
           "vllm:spec_decode_num_accepted_tokens_total{model_name=\"m\"} 14\n",
           "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\",position=\"1\"} "
           "4\n",
           "tandem:spec_decode_drafted_tokens_per_pos_total{model_name=\"m\",position=\"2\"} 5\n",
           "tandem:verify_steps_total{model_name=\"m\"} 20\n",
           "tandem:preemptions_total{model_name=\"m\"} 1\n",
           "tandem:steps_total{model_name=\"m\"} 50\n",
           "# TYPE vllm:iteration_tokens_total histogram\n",
           "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"1\"} 10\n",
           "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"8\"} 30\n",
           "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"128\"} 45\n",
           "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"16384\"} 45\n",
           "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"+Inf\"} 50\n",
           "vllm:iteration_tokens_total_count{model_name=\"m\"} 50\n",
           "vllm:iteration_tokens_total_sum{model_name=\"m\"} 900\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, CountsEachTokenOnceHoweverTheyAreGrouped) {
  Metrics metrics("m");
  metrics.observe_first_token(30ms);
  metrics.observe_next_tokens(80ms, 4);  // 20 ms each
  metrics.observe_end("stop",
                      {.first_step = 10ms, .first_token = 30ms, .last_token = 110ms, .end = 200ms},
                      {.prompt_tokens = 12, .cached_tokens = 8, .completion_tokens = 5});
  metrics.observe_end("abort", {{}, {}, {}, 1s}, {});  // never began
  metrics.observe_request(2, 40, 5);
  const std::string text = metrics.text(nullptr);
  for (const char* line : {
           "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 1\n",
           "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.02\"} 0\n",
           "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.04\"} 1\n",
           "vllm:inter_token_latency_seconds_count{model_name=\"m\"} 4\n",
           "vllm:inter_token_latency_seconds_sum{model_name=\"m\"} 0.08\n",
           "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"0.01\"} 0\n",
           "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"0.025\"} 4\n",
           "vllm:time_per_output_token_seconds_count{model_name=\"m\"} 4\n",
           "vllm:e2e_request_latency_seconds_count{model_name=\"m\"} 2\n",
           "vllm:request_queue_time_seconds_sum{model_name=\"m\"} 0.01\n",
           "vllm:request_prefill_time_seconds_sum{model_name=\"m\"} 0.02\n",
           "vllm:request_decode_time_seconds_sum{model_name=\"m\"} 0.08\n",
           "vllm:request_inference_time_seconds_sum{model_name=\"m\"} 0.1\n",
           "vllm:request_decode_time_seconds_count{model_name=\"m\"} 1\n",
           "vllm:request_max_num_generation_tokens_sum{model_name=\"m\"} 5\n",
           "vllm:request_params_max_tokens_sum{model_name=\"m\"} 40\n",
           "vllm:request_params_n_bucket{model_name=\"m\",le=\"1\"} 0\n",
           "vllm:request_params_n_bucket{model_name=\"m\",le=\"2\"} 1\n",
           "vllm:request_prefill_kv_computed_tokens_sum{model_name=\"m\"} 4\n",
           "vllm:request_time_per_output_token_seconds_sum{model_name=\"m\"} 0.02\n",
           "vllm:request_prompt_tokens_sum{model_name=\"m\"} 12\n",
           "vllm:request_generation_tokens_sum{model_name=\"m\"} 5\n",
           "vllm:request_success_total{finished_reason=\"stop\",model_name=\"m\"} 1\n",
           "vllm:request_success_total{finished_reason=\"length\",model_name=\"m\"} 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

/// Every name that the dashboard asks for is one that the page has.
TEST(Metrics, FeedTheDashboard) {
  std::ifstream file(TANDEM_SOURCE_DIR "/docs/grafana/tandem.json");
  const std::string dashboard(std::istreambuf_iterator<char>(file), {});
  Metrics metrics("m");
  metrics.observe_first_token(30ms);
  metrics.count_response(200);
  const engine::EngineStats stats = some_stats();
  const std::string text = metrics.text(&stats);
  const std::regex name("(vllm|tandem|process)[:_][a-z0-9_]+");
  int num_names = 0;
  for (std::sregex_iterator it(dashboard.begin(), dashboard.end(), name), end; it != end; ++it) {
    EXPECT_THAT(text, HasSubstr("\n" + it->str())) << it->str();
    ++num_names;
  }
  EXPECT_GT(num_names, 20);
}

TEST(Metrics, ShowsTheProcessWithoutAnEngine) {
  Metrics metrics("m");
  metrics.count_response(404);
  const std::string text = metrics.text(nullptr);
  EXPECT_THAT(text, HasSubstr("\nprocess_resident_memory_bytes "));
  EXPECT_THAT(text, HasSubstr("\nprocess_peak_resident_memory_bytes "));
  EXPECT_THAT(text, HasSubstr("\nprocess_cpu_seconds_total "));
  EXPECT_THAT(text, HasSubstr("tandem:http_responses_total{code=\"404\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("vllm:num_requests_running")));
}

}  // namespace
}  // namespace tandem::server
