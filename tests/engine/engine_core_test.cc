#include "tandem/engine/engine_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>

#include "core_harness.h"

namespace tandem::engine {
namespace {

using testing::Harness;
using testing::kEos;
using testing::letters;
using testing::make_request;
using testing::Received;
using testing::ScriptedRunner;

TEST(EngineCore, AnswersOneRequestLikeTheOracle) {
  for (int k = 0; k <= 6; ++k) {
    for (const int chunk : {1, 3, 7, 32}) {
      const ScriptedRunner::Options options;
      Harness harness(options, {.draft_length = k, .prefill_chunk = chunk});
      const Request request = make_request(1, 21, 60);
      harness.add(request);
      harness.run();
      harness.expect_output(options, request);
      const Received& r = harness.received(1);
      if (k > 0) {
        EXPECT_GT(r.usage.accepted_tokens, 10);
        EXPECT_GT(r.longest_event, 1);
      } else {
        EXPECT_EQ(r.usage.drafted_tokens, 0);
      }
    }
  }
}

TEST(EngineCore, ChatOfSeveralTurnsReusesPromptAndOutput) {
  const ScriptedRunner::Options options;
  Harness harness(options, {.prefix_cache_bytes = 400});
  Request request = make_request(1, 30, 21);
  harness.add(request);
  harness.run();
  harness.expect_output(options, request);
  Request next = make_request(2, 0, 10);
  next.prompt = request.prompt;
  const auto& answer = harness.received(1).tokens;
  next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
  const auto more = letters(9, 5);
  next.prompt.insert(next.prompt.end(), more.begin(), more.end());
  harness.add(next);
  harness.run();
  harness.expect_output(options, next);
  // 30 prompt tokens and 20 of the 21 answers are in the cache: 12 full pages of 4.
  EXPECT_EQ(harness.received(2).usage.cached_tokens, 48);
  EXPECT_EQ(harness.core().stats().cached_tokens, 48U);
}

TEST(EngineCore, SameInstructionsWithOtherQuestionsHit) {
  // The instructions end 12 tokens before the first prompt does, farther back than the window.
  ScriptedRunner::Options options;
  options.max_context = 512;
  options.kv_memory_bytes = 2000;
  Harness harness(options, {.prefix_cache_bytes = 2000});
  const auto instructions = letters(100, 3);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    Request request = make_request(id, 0, 30);
    request.prompt = instructions;
    const auto question = letters(12, static_cast<unsigned>(id) + 50);
    request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    harness.add(request);
    harness.run();
    harness.expect_output(options, request);
    EXPECT_EQ(harness.received(id).usage.cached_tokens, id == 1 ? 0 : 100);
  }
}

TEST(EngineCore, RepeatedPromptComputesItsLastToken) {
  const ScriptedRunner::Options options;
  Harness harness(options, {.prefix_cache_bytes = 400});
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const Request request = make_request(id, 24, 8);
    harness.add(request);
    harness.run();
    harness.expect_output(options, request);
    EXPECT_EQ(harness.received(id).usage.cached_tokens, id == 1 ? 0 : 20);
  }
}

TEST(EngineCore, StartsNewPromptsInTheNextStepAndTogether) {
  ScriptedRunner::Options options;
  options.max_sequences = 6;
  Harness harness(options, {.draft_length = 4});
  harness.add(make_request(1, 5, 50));
  harness.step();
  harness.step();
  for (std::uint64_t id = 2; id <= 4; ++id) harness.add(make_request(id, 6, 5, 7));
  harness.step();
  for (std::uint64_t id = 2; id <= 4; ++id) EXPECT_EQ(harness.received(id).tokens.size(), 1U);
  harness.run();
}

TEST(EngineCore, DeliversWhileADeviceOfItsOwnWorks) {
  for (const bool runs_ahead : {false, true}) {
    ScriptedRunner::Options options;
    options.runs_ahead = runs_ahead;
    Harness harness(options, {});
    harness.add(make_request(1, 3, 50));
    int steps_at_delivery = -1;
    const auto meanwhile = [&] {
      harness.core().deliver();
      steps_at_delivery = harness.runner().steps();
    };
    harness.core().step(meanwhile);
    EXPECT_EQ(steps_at_delivery, runs_ahead ? 1 : 0);
    EXPECT_TRUE(harness.received(1).tokens.empty());
    harness.core().step(meanwhile);
    EXPECT_EQ(steps_at_delivery, runs_ahead ? 2 : 1);
    EXPECT_EQ(harness.received(1).tokens.size(), 1U);
    harness.run();
    harness.expect_output(options, make_request(1, 3, 50));
  }
}

TEST(EngineCore, CancelEndsARequestInAnyState) {
  const ScriptedRunner::Options options;
  Harness harness(options, {.prefill_chunk = 4});
  harness.add(make_request(1, 3, 50));
  harness.step();
  for (std::uint64_t id = 2; id <= 6; ++id) harness.add(make_request(id, 20, 50, 2));
  harness.step();
  for (const std::uint64_t id : {1U, 2U, 6U, 99U}) harness.core().cancel(id);
  harness.core().deliver();
  harness.check();
  for (const std::uint64_t id : {1U, 2U, 6U}) {
    EXPECT_EQ(harness.received(id).finish, FinishReason::kCancelled);
  }
  harness.run();
  EXPECT_EQ(harness.received(1).events_after_finish, 0);
  EXPECT_EQ(harness.received(3).tokens.size(), 50U);
  EXPECT_EQ(harness.core().stats().requests_cancelled, 3U);
  EXPECT_EQ(harness.core().stats().requests_finished, 3U);
}

TEST(EngineCore, ValuesThatAreNotFiniteFailTheirRequestOnly) {
  ScriptedRunner::Options options;
  options.broken_token = 5;  // a byte, never chosen
  Harness harness(options, {.prefill_chunk = 4});
  for (std::uint64_t id = 1; id <= 6; ++id) {
    Request request = make_request(id, 10, 20);
    if (id == 2) request.prompt[1] = options.broken_token;  // in a chunk that samples nothing
    if (id == 5) request.prompt[9] = options.broken_token;
    harness.add(request);
  }
  harness.run();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    const bool is_broken = id == 2 || id == 5;
    EXPECT_EQ(harness.received(id).finish,
              is_broken ? FinishReason::kError : FinishReason::kLength);
    EXPECT_EQ(harness.received(id).tokens.size(), is_broken ? 0U : 20U);
  }
  EXPECT_TRUE(harness.core().stats().healthy);
  EXPECT_EQ(harness.core().stats().requests_failed, 2U);
}

TEST(EngineCore, DeviceFaultFailsEverybody) {
  const ScriptedRunner::Options options;
  Harness harness(options, {});
  for (std::uint64_t id = 1; id <= 8; ++id) harness.add(make_request(id, 10, 50));
  harness.runner().fail_from(5);
  harness.run();
  for (std::uint64_t id = 1; id <= 8; ++id) {
    EXPECT_EQ(harness.received(id).finish, FinishReason::kError);
    EXPECT_EQ(harness.received(id).error.message(), "the device is gone");
  }
  EXPECT_FALSE(harness.core().stats().healthy);
  EXPECT_EQ(harness.core().stats().kv_bytes_used, 0U);
}

TEST(EngineCore, RefusesWhatCannotBeServedInASentence) {
  ScriptedRunner::Options options;
  options.kv_memory_bytes = 100;  // less than the context of 256 tokens
  Harness harness(options, {});
  const auto message = [&](auto change) {
    Request request = make_request(1, 5, 5);
    change(request);
    const core::Status status = harness.core().check_request(request);
    EXPECT_EQ(status.code(), core::Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message([](Request& r) { r.prompt.clear(); }), "the prompt has no token");
  EXPECT_EQ(message([](Request& r) { r.prompt[2] = 300; }),
            "prompt token 300 at index 2 is not in the vocabulary of 284 entries");
  EXPECT_EQ(message([](Request& r) { r.prompt[4] = -1; }),
            "prompt token -1 at index 4 is not in the vocabulary of 284 entries");
  const int context = harness.core().context();
  EXPECT_LT(context, 256);
  EXPECT_NE(message([&](Request& r) { r.prompt = letters(context, 1); }).find("raise --kv-memory"),
            std::string::npos);
  message([](Request& r) { r.max_tokens = -1; });
  message([](Request& r) { r.draft_length = 9; });
  message([](Request& r) { r.stop = {"a", ""}; });
  message([](Request& r) { r.stop = {"\x80"}; });
  message([](Request& r) { r.sampling.temperature = std::numeric_limits<float>::quiet_NaN(); });
  message([](Request& r) { r.sampling.top_p = 0; });
  message([](Request& r) { r.sampling.min_p = 2; });
  message([](Request& r) { r.sampling.top_k = -1; });
}

TEST(EngineCore, FillsTheContextAndNoMore) {
  for (const std::size_t bytes : {30U, 47U, 60U, 400U, 4000U}) {
    ScriptedRunner::Options options;
    options.kv_memory_bytes = bytes;
    options.max_context = 100;
    Harness harness(options, {.draft_length = 3});
    const int context = harness.core().context();
    EXPECT_EQ(context, std::min(context, 100));
    for (const int prompt : {1, context / 2, context - 1}) {
      const Request request = make_request(static_cast<std::uint64_t>(prompt), prompt, 0);
      harness.add(request);
      harness.run();
      harness.expect_output(options, request);
      EXPECT_EQ(*harness.received(request.id).finish, FinishReason::kLength);
    }
  }
}

TEST(EngineCore, CountsDraftsByPosition) {
  ScriptedRunner::Options options;
  options.draft_accuracy = 1.0;
  Harness harness(options, {.draft_length = 3});
  harness.add(make_request(1, 5, 41));  // 1 + 10 rounds of 4
  harness.run();
  const EngineStats stats = harness.core().stats();
  EXPECT_EQ(stats.verify_steps, 10U);
  EXPECT_EQ(stats.draft_rounds, 10U);
  EXPECT_EQ(stats.drafted_at[0], 10U);
  EXPECT_EQ(stats.accepted_at[2], 10U);
  EXPECT_EQ(stats.drafted_at[3], 0U);
  EXPECT_EQ(stats.generated_tokens, 41U);
  EXPECT_EQ(stats.prompt_tokens, 5U);
  EXPECT_EQ(harness.received(1).usage.accepted_tokens, 30);
}

/// Random traffic: everything at once, with budgets that force preemption and eviction.
void run_random_traffic(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  ScriptedRunner::Options options;
  options.page_tokens = pick(1, 6);
  options.model.window = pick(1, 14);
  options.model.eos_share = pick(0, 2) * 0.02;
  options.max_sequences = pick(1, 6);
  options.max_rows = pick(options.max_sequences, 40);
  options.max_kept_rows = pick(options.max_sequences, 30);
  options.max_draft = pick(0, kMaxDraft);
  options.draft_accuracy = pick(0, 4) * 0.25;
  options.page_bytes = {static_cast<std::size_t>(pick(1, 5)), static_cast<std::size_t>(pick(1, 5))};
  const std::size_t pair = options.page_bytes[0] + options.page_bytes[1];
  options.kv_memory_bytes = pair * static_cast<std::size_t>(pick(60, 200)) /
                            static_cast<std::size_t>(options.page_tokens);
  for (int& pages : options.max_pages) {
    if (pick(0, 2) == 0) pages = pick(40, 150) / options.page_tokens;
  }
  options.runs_ahead = pick(0, 1) == 0;
  EngineOptions engine_options;
  engine_options.draft_length = pick(-1, kMaxDraft);
  engine_options.prefill_chunk = pick(1, 40);
  engine_options.prefix_cache = pick(0, 3) > 0;
  engine_options.prefix_cache_bytes =
      pick(0, 1) == 0 ? options.kv_memory_bytes : static_cast<std::size_t>(pick(1, 60));
  Harness harness(options, engine_options);
  const int context = harness.core().context();

  std::vector<Request> requests;
  std::set<std::uint64_t> cancelled;
  const int total = pick(5, 25);
  while (static_cast<int>(requests.size()) < total || harness.core().has_work()) {
    while (static_cast<int>(requests.size()) < total && pick(0, 3) == 0) {
      Request request = make_request(requests.size() + 1, pick(1, std::max(1, context / 2)),
                                     pick(0, 30), static_cast<unsigned>(pick(0, 2)));
      if (!requests.empty() && pick(0, 2) == 0) {  // continues or branches off another text
        request.prompt = requests[random() % requests.size()].prompt;
        const auto& tail = harness.received(requests.back().id).tokens;
        request.prompt.insert(request.prompt.end(), tail.begin(), tail.end());
        request.prompt.resize(std::min<std::size_t>(
            request.prompt.size(), static_cast<std::size_t>(pick(1, context - 1))));
      }
      if (pick(0, 2) == 0) request.draft_length = pick(0, kMaxDraft);
      if (pick(0, 1) == 0) request.sampling = {.temperature = 1.0F, .seed = random()};
      if (pick(0, 3) == 0) request.stop = {"ab", "qu", "xyz"};
      request.ignore_eos = pick(0, 3) == 0;
      if (pick(0, 3) == 0) request.penalties = {0.5F, 0.25F, 1.5F};
      if (pick(0, 3) == 0) {
        request.logit_bias = {{testing::kFirstLetter + 3, 3.5F}, {kEos, 2.0F}, {40, -100.0F}};
      }
      if (pick(0, 2) == 0 && !request.ignore_eos) request.grammar = testing::scripted_grammar();
      if (pick(0, 2) == 0) {
        request.thought_budget = {testing::kFirstLetter + 1, testing::kFirstLetter + 2, pick(0, 9)};
      }
      if (pick(0, 3) == 0) request.min_tokens = pick(0, request.max_tokens);
      if (pick(0, 3) == 0) request.stop_tokens = {testing::kFirstLetter + pick(0, 25)};
      harness.add(request);
      requests.push_back(request);
    }
    if (!requests.empty() && pick(0, 40) == 0) {
      harness.core().deliver();  // so that it is known what has ended
      const std::uint64_t id = requests[random() % requests.size()].id;
      if (!harness.received(id).finish.has_value()) cancelled.insert(id);
      harness.core().cancel(id);
    }
    if (!requests.empty() && pick(0, 20) == 0) {
      harness.core().preempt(requests[random() % requests.size()].id);
    }
    if (harness.core().has_work()) harness.step_without_delivery();
    if (::testing::Test::HasFatalFailure()) return;
  }
  harness.core().deliver();
  std::uint64_t accepted = 0;
  std::uint64_t counted = 0;
  for (const Request& request : requests) {
    accepted += static_cast<std::uint64_t>(harness.received(request.id).usage.accepted_tokens);
    if (cancelled.contains(request.id)) {
      EXPECT_EQ(harness.received(request.id).finish, FinishReason::kCancelled);
      EXPECT_EQ(harness.received(request.id).events_after_finish, 0);
    } else {
      harness.expect_output(options, request);
    }
  }
  const EngineStats stats = harness.core().stats();
  for (const std::uint64_t n : stats.accepted_at) counted += n;
  EXPECT_EQ(counted, accepted);
  EXPECT_EQ(stats.kv_bytes_used, 0U);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

/// Runs seeds [0, n); TANDEM_TEST_SEEDS sets n for a long hunt.
TEST(EngineCore, EveryOutputEqualsTheOracleUnderRandomTraffic) {
  const char* wanted = std::getenv("TANDEM_TEST_SEEDS");
  const int num_seeds = wanted == nullptr ? 400 : std::atoi(wanted);
  for (int seed = 0; seed < num_seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    run_random_traffic(static_cast<unsigned>(seed));
  }
}

TEST(EngineCore, AContextEndsWhereEitherKindOfPageDoes) {
  // Pages of 64 tokens as a device has them whose memory is shared out beforehand.
  ScriptedRunner::Options options;
  options.page_tokens = 64;
  options.model.window = 1024;
  options.page_bytes = {50, 5};
  options.kv_memory_bytes = 2048;
  options.max_context = 65536;
  const auto context = [&](std::array<int, kernels::kNumAttentionKinds> pages) {
    options.max_pages = pages;
    return Harness(options, {}).core().context();
  };
  EXPECT_EQ(context({}), 15296);  // 17 pages of a window, 239 of the other kind
  EXPECT_EQ(context({17, 0}), 15296);
  EXPECT_EQ(context({16, 0}), 1024);
  EXPECT_EQ(context({10, 307}), 640);  // too few for a window
  EXPECT_EQ(context({17, 100}), 6400);
  EXPECT_EQ(context({0, 12}), 768);
}

TEST(EngineCore, RandomTrafficPreemptsAndHits) {
  // The property above says something only if what it is about happens.
  ScriptedRunner::Options options;
  options.kv_memory_bytes = 240;
  options.page_tokens = 2;
  Harness harness(options, {.draft_length = 4, .prefix_cache_bytes = 240});
  std::vector<Request> requests;
  for (std::uint64_t id = 1; id <= 12; ++id) {
    requests.push_back(make_request(id, 14, 80, id % 2));
    harness.add(requests.back());
  }
  harness.run();
  for (const Request& request : requests) harness.expect_output(options, request);
  EXPECT_GT(harness.core().stats().preemptions, 3U);
  EXPECT_GT(harness.core().stats().cached_tokens, 10U);
}

}  // namespace
}  // namespace tandem::engine
