// The demo pair against what the reference implementation computed on the same quantized weights:
// tests/data/goldens/demo/demo.json.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "driver.h"
#include "support.h"
#include "tolerances.h"

namespace tandem {
namespace {

namespace json = boost::json;

json::object read_demo() {
  const std::string path = std::string(TANDEM_SOURCE_DIR) + "/tests/data/goldens/demo/demo.json";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return json::parse(text.str()).as_object();
}

std::vector<TokenId> ids_of(const json::value& value) {
  return json::value_to<std::vector<TokenId>>(value);
}

class DemoGolden : public testing::PerBackend {
 protected:
  std::unique_ptr<model::Model> load_pair(
      const std::string& drafter = testing::demo_path(testing::kDemoDrafter),
      kernels::KvType kv = kernels::KvType::kF16) const {
    model::LoadOptions options;
    options.kv_type = kv;
    options.kv_memory_bytes = std::size_t{256} << 20;
    options.max_sequences = 8;
    return testing::load(testing::demo_path(testing::kDemoTarget), drafter, backend(/*threads=*/2),
                         options);
  }
  void check_log_probabilities(model::Model& model, const testing::DemoTolerance& tolerance) const;
  void check_perplexity(model::Model& model, const testing::DemoTolerance& tolerance) const;
  void check_acceptance(model::Model& model, const std::string& head);

  const json::object demo_ = read_demo();
  const testing::DemoTolerance tolerance_ = testing::demo_tolerance(GetParam());
};

/// The prompts of the file as sequences, with as many tokens as its entry `mtp` or `greedy` says.
testing::Sequence sequence_of(const json::object& prompt, int num_tokens, int drafts) {
  testing::Sequence sequence;
  sequence.prompt = ids_of(prompt.at("ids"));
  sequence.num_tokens = num_tokens;
  sequence.drafts = drafts;
  return sequence;
}

TEST_P(DemoGolden, GreedyTokens) {
  const auto model = load_pair();
  ASSERT_NE(model, nullptr);
  std::vector<testing::Sequence> batch;
  for (const json::value& entry : demo_.at("prompts").as_array()) {
    batch.push_back(sequence_of(entry.as_object(), 64, 0));
  }
  const auto generated = testing::Driver(*model).generate(batch);
  int equal = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const json::object& entry = demo_.at("prompts").at(i).as_object();
    const auto expected = ids_of(entry.at("greedy"));
    const auto gaps = json::value_to<std::vector<float>>(entry.at("gap"));
    const auto& tokens = generated[i].tokens;
    ASSERT_EQ(tokens.size(), expected.size());
    const auto differs = std::mismatch(tokens.begin(), tokens.end(), expected.begin()).first;
    const auto token = static_cast<std::size_t>(differs - tokens.begin());
    equal += static_cast<int>(token);
    if (token == expected.size()) continue;
    // What follows a near-tie is covered by TeacherForcedLogProbabilities.
    EXPECT_LE(gaps[token], tolerance_.token_gap) << entry.at("question") << " token " << token;
  }
  std::cout << equal << " of " << 64 * batch.size() << " tokens before the first near-tie\n";
}

void DemoGolden::check_log_probabilities(model::Model& model,
                                         const testing::DemoTolerance& tolerance) const {
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  double total = 0;
  int count = 0;
  int equal = 0;
  for (const json::value& value : demo_.at("prompts").as_array()) {
    const json::object& entry = value.as_object();
    auto text = ids_of(entry.at("ids"));
    const auto prompt_size = static_cast<int>(text.size());
    const auto greedy = ids_of(entry.at("greedy"));
    text.insert(text.end(), greedy.begin(), greedy.end() - 1);
    const auto scored = model.score(text, 64, prompt_size - 1);
    ASSERT_TRUE(scored.ok()) << scored.status().message();
    for (std::size_t i = 0; i < greedy.size(); ++i) {
      const auto row = std::span(*scored).subspan(i * vocab, vocab);
      const double expected = entry.at("top_logprobs").at(i).at(0).to_number<double>();
      ASSERT_EQ(entry.at("top_ids").at(i).at(0).to_number<TokenId>(), greedy[i]);
      total += std::abs(testing::log_probability(row, greedy[i]) - expected);
      ++count;
      if (testing::argmax(row) == greedy[i]) {
        ++equal;
      } else {
        EXPECT_LE(entry.at("gap").at(i).to_number<float>(), tolerance.token_gap);
      }
    }
  }
  EXPECT_LE(total / count, tolerance.log_probability);
  std::cout << "mean |difference| of log-probabilities " << total / count << ", " << equal << " of "
            << count << " tokens equal\n";
}

void DemoGolden::check_perplexity(model::Model& model,
                                  const testing::DemoTolerance& tolerance) const {
  const json::object& perplexity = demo_.at("perplexity").as_object();
  const auto ids = ids_of(perplexity.at("ids"));
  const auto scored = model.score(ids, 64, 0);
  ASSERT_TRUE(scored.ok()) << scored.status().message();
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  double nll = 0;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    nll -= testing::log_probability(std::span(*scored).subspan(i * vocab, vocab), ids[i + 1]);
  }
  nll /= static_cast<double>(ids.size() - 1);
  const double expected = perplexity.at("nll_gguf_f32").to_number<double>();
  EXPECT_NEAR(nll, expected, tolerance.nll);
  std::cout << "mean NLL " << nll << ", " << nll - expected << " from the reference\n";
}

TEST_P(DemoGolden, TeacherForcedLogProbabilities) {
  const auto model = load_pair();
  ASSERT_NE(model, nullptr);
  check_log_probabilities(*model, tolerance_);
}

TEST_P(DemoGolden, PerplexityOfALongText) {
  const auto model = load_pair();
  ASSERT_NE(model, nullptr);
  check_perplexity(*model, tolerance_);
}

TEST_P(DemoGolden, WithAnInt8Cache) {
  if (GetParam() == "cuda") GTEST_SKIP() << "CUDA has no int8 cache";
  const auto model = load_pair(testing::demo_path(testing::kDemoDrafter), kernels::KvType::kInt8);
  ASSERT_NE(model, nullptr);
  check_log_probabilities(*model, testing::int8_tolerance());
  check_perplexity(*model, testing::int8_tolerance());
}

// Per draft position over all prompts, in rounds along the recorded text up to its end token. The
// text of a free run leaves the recorded one at the first near-tie, and a hundred rounds on another
// text have another acceptance, whatever the arithmetic.
/// Drafts along the recorded text of every prompt; acceptance per position against the golden's of
/// `head`.
void DemoGolden::check_acceptance(model::Model& model, const std::string& head) {
  constexpr std::size_t kDrafts = 4;
  std::array<int, kDrafts> drafted = {};
  std::array<int, kDrafts> accepted = {};
  for (const json::value& value : demo_.at("prompts").as_array()) {
    const json::object& entry = value.as_object();
    auto text = ids_of(entry.at("ids"));
    const auto greedy = ids_of(entry.at("greedy"));
    const auto num_tokens = entry.at("mtp").at(head).at("tokens").to_number<std::size_t>();
    for (std::size_t begin = 0; begin + 1 < num_tokens;) {
      const auto slot = testing::run_prompt(model, text, kDrafts);
      std::size_t same = 0;
      if (slot.token == greedy[begin]) {
        const std::size_t count = std::min(kDrafts, num_tokens - begin - 1);
        while (same < count && slot.drafts[same] == greedy[begin + 1 + same]) ++same;
        for (std::size_t i = 0; i < count; ++i) {
          ++drafted[i];
          accepted[i] += i < same ? 1 : 0;
        }
      }
      const auto next = greedy.begin() + static_cast<std::ptrdiff_t>(begin);
      begin += same + 1;
      text.insert(text.end(), next, greedy.begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }
  const json::value& expected = demo_.at("mtp_total").at(head).at("rate_per_position");
  for (std::size_t i = 0; i < kDrafts; ++i) {
    const double rate = static_cast<double>(accepted[i]) / drafted[i];
    EXPECT_NEAR(rate, expected.at(i).to_number<double>(), testing::kAcceptanceTolerance);
    std::cout << "draft " << i + 1 << ": " << accepted[i] << " of " << drafted[i] << " accepted, "
              << expected.at(i).to_number<double>() << " expected\n";
  }
}

TEST_P(DemoGolden, AcceptanceOfTheDrafter) {
  const auto model = load_pair();
  ASSERT_NE(model, nullptr);
  check_acceptance(*model, "dense");
}

// The drafter's own directory has the centroid head, which the GGUF file lost.
TEST_P(DemoGolden, AcceptanceOfTheCentroidHead) {
  const std::string drafter = testing::data_dir() + "/demo/demo-it-assistant";
  if (!std::filesystem::exists(drafter)) GTEST_SKIP() << "no " << drafter;
  const auto model = load_pair(drafter);
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->drafts_by_centroids());
  check_acceptance(*model, "centroid");
}

TANDEM_FOR_EACH_BACKEND(golden, DemoGolden);

}  // namespace
}  // namespace tandem
