// Every tiny model against what the reference implementation computed on its weights.
// The tensors of a golden file: tests/data/goldens/README.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "../formats/tensor_values.h"
#include "driver.h"
#include "support.h"
#include "tandem/formats/safetensors.h"
#include "tolerances.h"

namespace tandem {
namespace {

using testing::GoldenModel;
using testing::run_prompt;
using testing::Tolerance;

constexpr int kPageBudget = 64 << 20;

/// A golden file; every accessor fails the test if the tensor is not there.
class Golden {
 public:
  explicit Golden(const std::string& path) : file_(formats::SafetensorsFile::open(path).value()) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const {
    return formats::floats_of(file_, name);
  }
  std::vector<TokenId> ids(const std::string& name) const {
    const auto wide = formats::ints_of(file_, name);
    return {wide.begin(), wide.end()};
  }
  /// "p1.", "p7.", ...: one per prompt.
  std::vector<std::string> prompts() const {
    std::vector<std::string> prefixes;
    for (const auto& tensor : file_.tensors()) {
      if (tensor.name.ends_with(".ids") && tensor.name.find(".draft.") == std::string::npos) {
        prefixes.push_back(tensor.name.substr(0, tensor.name.size() - 3));
      }
    }
    return prefixes;
  }

 private:
  formats::SafetensorsFile file_;
};

struct Difference {
  float max = 0;
  float rms = 0;
};

/// Over the finite values of `actual`: suppressed logits are -inf there but not in the goldens.
Difference difference(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double squares = 0;
  Difference d;
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    if (std::isinf(actual[i])) continue;
    const float delta = std::abs(actual[i] - expected[i]);
    d.max = std::max(d.max, delta);
    squares += static_cast<double>(delta) * delta;
  }
  d.rms = static_cast<float>(std::sqrt(squares / static_cast<double>(expected.size())));
  return d;
}

class TinyGolden : public testing::PerBackend {
 protected:
  struct Context {
    model::Model& model;
    const Golden& golden;
    Tolerance tolerance;
  };

  using Check = std::function<void(const Context&, const std::string&)>;

  /// Runs `check` on every prompt of every model that loads.
  void for_each_prompt(const Check& check) {
    for (const GoldenModel& entry : testing::golden_models()) {
      run(entry, entry.draft_path(), model::DraftHead::kAuto, check);
    }
    EXPECT_GT(models_, 0) << "no model of " << testing::data_dir() << " was tested";
  }

  /// The same with every drafter of each model.
  void for_each_drafter(model::DraftHead head, const Check& check) {
    for (const GoldenModel& entry : testing::golden_models()) {
      for (const std::string& drafter : entry.draft_paths) run(entry, drafter, head, check);
    }
    EXPECT_GT(models_, 0) << "no model of " << testing::data_dir() << " was tested";
  }

  void run(const GoldenModel& entry, const std::string& drafter, model::DraftHead head,
           const Check& check) {
    SCOPED_TRACE(entry.model_path + " with " + drafter);
    model::LoadOptions options;
    options.kv_memory_bytes = kPageBudget;
    options.draft_head = head;
    const auto model = testing::load(entry.model_path, drafter, backend(), options);
    if (model == nullptr) return;
    ++models_;
    const Golden golden(entry.golden_path);
    const testing::Weights weights = testing::weights_of(entry.model_path);
    for (const std::string& prompt : golden.prompts()) {
      SCOPED_TRACE(prompt);
      const std::size_t size = golden.ids(prompt + "ids").size();
      check({*model, golden, testing::tiny_tolerance(GetParam(), weights, size)}, prompt);
    }
  }

  /// The six drafts after a prompt, and the hidden row of each, against the golden's of `head`.
  void check_drafts(const Context& c, const std::string& p, const std::string& head);

  int models_ = 0;
  int rounds_ = 0;
  Difference worst_;
};

TEST_P(TinyGolden, LogitsOfEveryPrompt) {
  int rows = 0;
  int ties = 0;
  float widest_tie = 0;
  for_each_prompt([&](const Context& c, const std::string& p) {
    const auto ids = c.golden.ids(p + "ids");
    auto scored = c.model.score(ids, 64, 0);
    ASSERT_TRUE(scored.ok()) << scored.status().message();
    const auto vocab = static_cast<std::size_t>(c.model.config().vocab);
    const std::span<const float> all = *scored;
    const Difference d = difference(all.last(vocab), c.golden.floats(p + "logits"));
    worst_ = {std::max(worst_.max, d.max), std::max(worst_.rms, d.rms)};
    EXPECT_LE(d.rms, c.tolerance.logit_rms);
    if (c.tolerance.logit_max > 0) {
      EXPECT_LE(d.max, c.tolerance.logit_max);
    }
    const auto expected = c.golden.ids(p + "argmax");
    const auto gaps = c.golden.floats(p + "argmax_gap");
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const std::span<const float> logits = all.subspan(row * vocab, vocab);
      // The goldens' argmax is before suppression.
      if (std::isinf(logits[static_cast<std::size_t>(expected[row])])) continue;
      ++rows;
      if (testing::argmax(logits) == expected[row]) continue;
      ++ties;
      widest_tie = std::max(widest_tie, gaps[row]);
      EXPECT_LE(gaps[row], c.tolerance.prompt_gap) << "row " << row;
    }
  });
  std::cout << "largest logit difference " << worst_.max << ", RMS " << worst_.rms << "; " << ties
            << " of " << rows << " rows have another argmax, gap at most " << widest_tie << "\n";
}

TEST_P(TinyGolden, HiddenStateAfterThePrompt) {
  for_each_prompt([&](const Context& c, const std::string& p) {
    const auto slot = run_prompt(c.model, c.golden.ids(p + "ids"), 0);
    const Difference d = difference(slot.hidden, c.golden.floats(p + "hN"));
    worst_ = {std::max(worst_.max, d.max), std::max(worst_.rms, d.rms)};
    EXPECT_LE(d.rms, c.tolerance.hidden_rms);
    if (c.tolerance.hidden_max > 0) {
      EXPECT_LE(d.max, c.tolerance.hidden_max);
    }
    EXPECT_EQ(slot.position, static_cast<Position>(c.golden.ids(p + "ids").size()));
  });
  std::cout << "largest hidden difference " << worst_.max << ", RMS " << worst_.rms << "\n";
}

// Where a near-tie falls the other way, the rest is compared after the expected token.
TEST_P(TinyGolden, GreedyTokens) {
  int ties = 0;
  float widest_tie = 0;
  for_each_prompt([&](const Context& c, const std::string& p) {
    const auto expected = c.golden.ids(p + "greedy");
    const auto gaps = c.golden.floats(p + "greedy_gap");
    testing::Driver driver(c.model);
    testing::Sequence sequence;
    sequence.prompt = c.golden.ids(p + "ids");
    for (std::size_t done = 0; done < expected.size();) {
      const std::span<const TokenId> rest = std::span(expected).subspan(done);
      sequence.num_tokens = static_cast<int>(rest.size());
      const auto tokens = driver.generate(sequence).tokens;
      ASSERT_EQ(tokens.size(), rest.size());
      const auto differs = std::mismatch(rest.begin(), rest.end(), tokens.begin()).first;
      if (differs == rest.end()) break;
      done += static_cast<std::size_t>(differs - rest.begin()) + 1;
      widest_tie = std::max(widest_tie, gaps[done - 1]);
      EXPECT_LE(gaps[done - 1], c.tolerance.token_gap) << "token " << done - 1;
      sequence.prompt.insert(sequence.prompt.end(), rest.begin(), differs + 1);
      ++ties;
    }
  });
  std::cout << ties << " near-ties fell the other way, gap at most " << widest_tie << "\n";
}

void TinyGolden::check_drafts(const Context& c, const std::string& p, const std::string& head) {
  const std::string q = p + "draft." + head + ".";
  if (!c.golden.has(q + "ids")) return;
  const auto prompt = c.golden.ids(p + "ids");
  const auto expected = c.golden.ids(q + "ids");
  const auto gaps = c.golden.floats(q + "gap");
  const auto hidden = c.golden.floats(q + "u");
  const std::size_t width = hidden.size() / expected.size();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    const auto slot = run_prompt(c.model, prompt, static_cast<int>(i) + 1);
    if (slot.token != c.golden.ids(p + "greedy")[0]) {
      EXPECT_LE(c.golden.floats(p + "greedy_gap")[0], c.tolerance.token_gap);
      return;
    }
    const Difference d = difference(slot.draft_hidden, std::span(hidden).subspan(i * width, width));
    worst_ = {std::max(worst_.max, d.max), std::max(worst_.rms, d.rms)};
    EXPECT_LE(d.rms, c.tolerance.hidden_rms);
    if (c.tolerance.hidden_max > 0) {
      EXPECT_LE(d.max, c.tolerance.hidden_max);
    }
    ASSERT_EQ(slot.drafts.size(), i + 1);
    ++rounds_;
    if (slot.drafts[i] == expected[i]) continue;
    EXPECT_LE(gaps[i], c.tolerance.token_gap) << slot.drafts[i] << " not " << expected[i];
    return;
  }
}

TEST_P(TinyGolden, DraftsOfTheDenseHead) {
  for_each_drafter(model::DraftHead::kDense, [&](const Context& c, const std::string& p) {
    ASSERT_FALSE(c.model.drafts_by_centroids());
    check_drafts(c, p, "dense");
  });
  std::cout << rounds_ << " draft steps, largest hidden difference " << worst_.max << ", RMS "
            << worst_.rms << "\n";
}

TEST_P(TinyGolden, DraftsOfTheCentroidHead) {
  for_each_drafter(model::DraftHead::kAuto, [&](const Context& c, const std::string& p) {
    if (c.model.drafts_by_centroids()) check_drafts(c, p, "centroid");
  });
  std::cout << rounds_ << " draft steps, largest hidden difference " << worst_.max << ", RMS "
            << worst_.rms << "\n";
}

TANDEM_FOR_EACH_BACKEND(golden, TinyGolden);

/// The CPU's vector paths. Plain code takes a minute and has the same bits: instruction_sets_test.
std::vector<std::string> vector_paths() {
  std::vector<std::string> names = testing::cpu_names();
  names.erase(names.begin());
  return names;
}
INSTANTIATE_TEST_SUITE_P(golden_isa, TinyGolden, ::testing::ValuesIn(vector_paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
