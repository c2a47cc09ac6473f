#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "core_harness.h"
#include "tandem/grammar/compiler.h"
#include "tandem/grammar/matcher.h"
#include "tandem/kernels/sampling.h"

namespace tandem::engine {
namespace {

using testing::Harness;
using testing::make_request;
using testing::ScriptedRunner;

TEST(RequestFields, AStopTokenEndsTheOutputLikeAnEndToken) {
  const ScriptedRunner::Options options;
  for (const int k : {0, 4}) {
    Harness harness(options, {.draft_length = k});
    const Request plain = make_request(1, 10, 40);
    harness.add(plain);
    harness.run();
    const std::vector<TokenId> tokens = harness.received(1).tokens;
    Request request = make_request(2, 10, 40);
    request.stop_tokens = {tokens[7]};
    request.ignore_eos = true;  // which turns off the vocabulary's end tokens only
    harness.add(request);
    harness.run();
    const auto first = std::find(tokens.begin(), tokens.end(), tokens[7]) + 1;
    const testing::Received& r = harness.received(2);
    EXPECT_EQ(r.tokens, std::vector<TokenId>(tokens.begin(), first));
    EXPECT_EQ(r.text, harness.received(1).text.substr(0, r.tokens.size() - 1));
    EXPECT_EQ(r.finish, FinishReason::kStop);
  }
}

TEST(RequestFields, ARequestEndsAtItsDeadlineWaitingOrRunning) {
  ScriptedRunner::Options options;
  options.max_sequences = 1;
  Harness harness(options, {.draft_length = 2});
  const auto at = [](double seconds) {
    return std::chrono::steady_clock::time_point(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(seconds)));
  };
  Request running = make_request(1, 10, 200);
  Request waiting = make_request(2, 10, 200);
  running.deadline = waiting.deadline = at(0.05);  // the harness' clock goes on 1 ms a look
  const Request patient = make_request(3, 10, 20);
  for (const Request& request : {running, waiting, patient}) harness.add(request);
  harness.run();
  for (const std::uint64_t id : {1U, 2U}) {
    EXPECT_EQ(harness.received(id).finish, FinishReason::kError);
    EXPECT_EQ(harness.received(id).error.code(), core::Code::kCancelled);
    EXPECT_EQ(harness.received(id).events_after_finish, 0);
  }
  EXPECT_GT(harness.received(1).tokens.size(), 1U);
  EXPECT_LT(harness.received(1).tokens.size(), 200U);
  EXPECT_TRUE(harness.received(2).tokens.empty());
  harness.expect_output(options, patient);
}

TEST(RequestFields, AGrammarHoldsForEveryDraftLengthAndDraftsUnderItAreAccepted) {
  ScriptedRunner::Options options;
  options.draft_accuracy = 1.0;
  for (int k = 0; k <= 6; ++k) {
    Harness harness(options, {.draft_length = k});
    for (std::uint64_t id = 1; id <= 6; ++id) {
      Request request = make_request(id, 10, 60, static_cast<unsigned>(id));
      request.grammar = testing::scripted_grammar();
      harness.add(request);
      harness.run();
      harness.expect_output(options, request);
      grammar::Matcher matcher(request.grammar);
      for (const TokenId token : harness.received(id).tokens) ASSERT_TRUE(matcher.accept(token));
      if (harness.received(id).finish == FinishReason::kStop) {
        EXPECT_TRUE(matcher.is_finished());
      }
    }
    if (k > 0) {
      EXPECT_GT(harness.core().stats().accepted_at[0], 5U);
    }
  }
}

TEST(RequestFields, AGrammarThatCannotBeFollowedEndsItsRequestAlone) {
  static const auto tokenizer = testing::scripted_tokenizer();
  grammar::Compiler compiler(*tokenizer);
  grammar::Source source;
  source.kind = grammar::Source::Kind::kGbnf;
  source.text = "root ::= \"(\" root \")\" | \"x\"";
  const auto made = compiler.compile(source);
  ASSERT_TRUE(made.ok()) << made.status().message();
  ScriptedRunner::Options options;
  options.max_context = 2000;
  options.kv_memory_bytes = 8000;
  for (const int k : {0, 4}) {
    Harness harness(options, {.draft_length = k});
    Request deep = make_request(1, 10, 1500);
    deep.grammar = *made;
    deep.logit_bias = {{'(', 100.0F}};  // byte tokens come first in this vocabulary
    const Request other = make_request(2, 10, 700);
    harness.add(deep);
    harness.add(other);
    harness.run();
    EXPECT_EQ(harness.received(1).finish, FinishReason::kError);
    EXPECT_EQ(harness.received(1).error.code(), core::Code::kResourceExhausted);
    EXPECT_GE(harness.received(1).tokens.size(), 500U);
    harness.expect_output(options, other);
    EXPECT_EQ(harness.core().stats().kv_bytes_used, 0U);
  }
}

TEST(RequestFields, AThoughtIsClosedWhereItsBudgetIsSpent) {
  constexpr TokenId kOpen = testing::kFirstLetter, kClose = kOpen + 1;
  const ScriptedRunner::Options options;
  for (const int k : {0, 1, 4}) {
    for (const bool is_opened_by_prompt : {true, false}) {
      Harness harness(options, {.draft_length = k});
      Request request = make_request(1, 10, 100);
      request.thought_budget = {kOpen, kClose, 7};
      request.logit_bias = {{kClose, -100.0F}};  // it would never come by itself
      if (is_opened_by_prompt) request.prompt.back() = kOpen;
      harness.add(request);
      harness.run();
      harness.expect_output(options, request);
      const auto& tokens = harness.received(1).tokens;
      const auto open = std::find(tokens.begin(), tokens.end(), kOpen);
      const auto close = std::find(tokens.begin(), tokens.end(), kClose);
      if (is_opened_by_prompt && open > close) {
        EXPECT_EQ(close - tokens.begin(), 7);
      } else if (!is_opened_by_prompt && open != tokens.end()) {
        EXPECT_GE(close - open, 8);
      }
    }
  }
}

TEST(RequestFields, PromptLogprobsAreOfEveryTokenWhateverPagesAndKeptRowsAreLeft) {
  std::uint64_t preemptions = 0;
  for (const int kept_rows : {4, 7, 32}) {
    for (const int chunk : {1, 5, 32}) {
      ScriptedRunner::Options options;
      options.max_kept_rows = kept_rows;
      Harness harness(options, {.draft_length = 3, .prefill_chunk = chunk});
      std::vector<Request> requests;
      for (std::uint64_t id = 1; id <= 9; ++id) {
        Request request = make_request(id, 1 + static_cast<int>(id * 7 % 40), 20);
        request.prompt.front() = testing::kFirstLetter;  // pages that others may share
        if (id % 3 != 0) request.prompt_logprobs = static_cast<int>(id % 3);
        requests.push_back(request);
        harness.add(requests.back());
        for (int i = 0; i < 3 && harness.core().has_work(); ++i) harness.step();
        if (id % 2 == 0) harness.core().preempt(id / 2 + 1);
      }
      harness.run();
      for (const Request& request : requests) {
        SCOPED_TRACE(request.id);
        harness.expect_output(options, request);
        const auto& logprobs = harness.received(request.id).prompt_logprobs;
        if (!request.prompt_logprobs) {
          EXPECT_TRUE(logprobs.empty());
          continue;
        }
        ASSERT_EQ(logprobs.size(), request.prompt.size() - 1);
        EXPECT_EQ(harness.received(request.id).usage.cached_tokens, 0);
        for (std::size_t i = 0; i < logprobs.size(); ++i) {
          const auto before = std::span(request.prompt).first(i + 1);
          std::vector<float> row = testing::ScriptedModel::logits(options.model.next(
              before,
              {.temperature = request.sampling.temperature, .seed = request.sampling.seed}));
          kernels::RowRule rule;
          rule.top_logprobs = request.prompt_logprobs;
          rule.given = request.prompt[i + 1];
          kernels::SamplingScratch scratch;
          kernels::TokenLogprobs expected;
          kernels::sample(row, {}, rule, 0, scratch, expected);
          EXPECT_EQ(logprobs[i].chosen.token, request.prompt[i + 1]);
          EXPECT_EQ(logprobs[i].chosen.logprob, expected.chosen.logprob);
          EXPECT_EQ(logprobs[i].top.size(), expected.top.size());
          EXPECT_EQ(logprobs[i].rank, expected.rank);
        }
      }
      preemptions += harness.core().stats().preemptions;
    }
  }
  EXPECT_GT(preemptions, 0U);
}

TEST(RequestFields, APromptMayFillTheContextIfNothingFollows) {
  for (const std::size_t kv_memory_bytes : {40U, 4000U}) {  // less, and more, than the context
    ScriptedRunner::Options options;
    options.kv_memory_bytes = kv_memory_bytes;
    options.max_kept_rows = 7;
    Harness harness(options, {.max_context = 90});
    const int context = harness.core().context();
    EXPECT_EQ(context == 90, kv_memory_bytes == 4000U);
    Request request = make_request(1, context, 0);
    EXPECT_EQ(harness.core().check_request(request).code(), core::Code::kInvalidArgument);
    request.is_prompt_only = true;
    for (const bool is_scored : {false, true}) {
      if (is_scored) request.prompt_logprobs = 1;
      harness.add(request);
      harness.run();
      const testing::Received& received = harness.received(request.id);
      EXPECT_EQ(received.finish, FinishReason::kLength);
      EXPECT_TRUE(received.tokens.empty());
      EXPECT_EQ(received.text, "");
      EXPECT_EQ(received.usage.completion_tokens, 0);
      EXPECT_EQ(received.prompt_logprobs.size(),
                is_scored ? static_cast<std::size_t>(context) - 1 : 0);
      request.id += 1;
    }
    request.prompt.push_back(request.prompt.front());
    EXPECT_EQ(harness.core().check_request(request).code(), core::Code::kInvalidArgument);
  }
}

TEST(RequestFields, WhatIsOutOfRangeIsRefusedInASentence) {
  const ScriptedRunner::Options options;
  Harness harness(options, {});
  const auto refused = [&](auto change) {
    Request request = make_request(1, 5, 5);
    change(request);
    const core::Status status = harness.core().check_request(request);
    EXPECT_EQ(status.code(), core::Code::kInvalidArgument);
    return status.message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused([](Request& r) {
              r.logit_bias = {{7, 101.0F}};
            }),
            "the logit_bias of token 7 is 101; give a number from -100 to 100");
  refused([&](Request& r) { r.logit_bias = {{7, nan}}; });
  refused([](Request& r) { r.logit_bias = {{-1, 1.0F}}; });
  refused([](Request& r) { r.logit_bias = {{testing::kScriptedVocab, 1.0F}}; });
  refused([](Request& r) { r.logit_bias.resize(kMaxLogitBiases + 1); });
  refused([](Request& r) { r.stop_tokens = {testing::kScriptedVocab}; });
  refused([](Request& r) { r.stop_tokens.resize(kMaxStopTokens + 1); });
  refused([](Request& r) { r.penalties.presence = 2.5F; });
  refused([&](Request& r) { r.penalties.frequency = nan; });
  refused([](Request& r) { r.penalties.repetition = 0.0F; });
  refused([](Request& r) { r.min_tokens = -1; });
  refused([](Request& r) { r.min_tokens = 6; });
  refused([](Request& r) { r.logprobs = 21; });
  refused([](Request& r) { r.prompt_logprobs = 21; });
  refused([](Request& r) { r.prompt_logprobs = -1; });
  refused([](Request& r) { r.thought_budget = {3, 3, 5}; });
  refused([](Request& r) { r.thought_budget = {3, testing::kScriptedVocab, 5}; });
  refused([](Request& r) { r.thought_budget = {3, 4, -1}; });
  refused([](Request& r) {
    r.grammar = testing::scripted_grammar();
    r.ignore_eos = true;
  });
  refused([](Request& r) { r.logprobs = -1; });
}

}  // namespace
}  // namespace tandem::engine
