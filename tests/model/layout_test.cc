// Files that lay the same weights out differently are the same model: joined and split tensors,
// scales beside weights, experts, and the centroid head of a drafter.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "driver.h"
#include "support.h"
#include "toy_model.h"

namespace tandem {
namespace {

using testing::GgufContents;
using testing::load_files;

std::vector<float> score(const GgufContents& contents) {
  return testing::score(testing::TemporaryFile(contents).path());
}

std::vector<float> values(const GgufContents& contents, const std::string& name) {
  const auto& bytes = contents.tensors.at(name).bytes;
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> value(0.0F, 0.2F);
  std::vector<float> out(count);
  for (float& x : out) x = value(random);
  return out;
}

TEST(Layout, JoinedQkvIsItsParts) {
  GgufContents contents = testing::toy_e_series();
  const auto expected = score(contents);
  for (int l : {0, 1}) {
    std::vector<float> joined;
    for (const char* part : {"attn_q", "attn_k", "attn_v"}) {
      const std::string name = fmt::format("blk.{}.{}.weight", l, part);
      const auto rows = values(contents, name);
      joined.insert(joined.end(), rows.begin(), rows.end());
      contents.tensors.erase(name);
    }
    const auto rows = static_cast<std::int64_t>(joined.size()) / 32;
    contents.set_f32(fmt::format("blk.{}.attn_qkv.weight", l), {rows, 32}, joined);
  }
  EXPECT_EQ(score(contents), expected);
}

TEST(Layout, AScaleBesideAWeightMultipliesIt) {
  GgufContents contents = testing::toy_e_series();
  const auto expected = score(contents);
  auto doubled = values(contents, "blk.0.ffn_up.weight");
  for (float& x : doubled) x *= 2.0F;
  contents.set_f32("blk.0.ffn_up.weight", {64, 32}, doubled);
  EXPECT_NE(score(contents), expected);
  contents.set_f32("blk.0.ffn_up.scale", {1}, {0.5F});
  EXPECT_EQ(score(contents), expected);
}

constexpr int kExperts = 4;
constexpr int kExpertFfn = 16;
constexpr int kHidden = 32;

/// The dense toy with experts in every layer, gate and up joined.
GgufContents with_experts() {
  GgufContents out = testing::toy_dense();
  out.keys["gemma4.expert_count"] = std::uint32_t{kExperts};
  out.keys["gemma4.expert_used_count"] = std::uint32_t{2};
  out.keys["gemma4.expert_feed_forward_length"] = std::uint32_t{kExpertFfn};
  for (int l = 0; l < 3; ++l) {
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      std::size_t count = 1;
      for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
      out.set_f32(fmt::format("blk.{}.{}", l, name), std::move(shape),
                  random_values(count, static_cast<unsigned>(l)));
    };
    add("ffn_gate_inp.weight", {kExperts, kHidden});
    add("ffn_gate_inp.scale", {kHidden});
    add("ffn_down_exps.scale", {kExperts});
    add("ffn_gate_up_exps.weight", {kExperts, 2 * kExpertFfn, kHidden});
    add("ffn_down_exps.weight", {kExperts, kHidden, kExpertFfn});
    for (const char* norm : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"}) {
      add(fmt::format("{}.weight", norm).c_str(), {kHidden});
    }
  }
  return out;
}

TEST(Layout, JoinedAndSplitExpertsAreTheSame) {
  GgufContents contents = with_experts();
  const auto expected = score(contents);
  EXPECT_NE(expected, score(testing::toy_dense()));
  constexpr std::ptrdiff_t kHalf = kExpertFfn * kHidden;
  for (int l = 0; l < 3; ++l) {
    const std::string joined_name = fmt::format("blk.{}.ffn_gate_up_exps.weight", l);
    const auto joined = values(contents, joined_name);
    std::vector<float> gate, up;
    for (auto it = joined.begin(); it != joined.end(); it += 2 * kHalf) {
      gate.insert(gate.end(), it, it + kHalf);
      up.insert(up.end(), it + kHalf, it + 2 * kHalf);
    }
    contents.tensors.erase(joined_name);
    const std::vector<std::int64_t> shape = {kExperts, kExpertFfn, kHidden};
    contents.set_f32(fmt::format("blk.{}.ffn_gate_exps.weight", l), shape, gate);
    contents.set_f32(fmt::format("blk.{}.ffn_up_exps.weight", l), shape, up);
  }
  EXPECT_EQ(score(contents), expected);
}

TEST(Layout, EveryExpertHasAScaleOfItsOwn) {
  GgufContents contents = with_experts();
  const auto expected = score(contents);
  const std::string name = "blk.1.ffn_gate_up_exps.weight";
  auto scaled = values(contents, name);
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    scaled[i] *= static_cast<float>(1 << (i / (2 * kExpertFfn * kHidden)));
  }
  contents.set_f32(name, {kExperts, 2 * kExpertFfn, kHidden}, scaled);
  EXPECT_NE(score(contents), expected);
  contents.set_f32("blk.1.ffn_gate_up_exps.scale", {kExperts}, {1.0F, 0.5F, 0.25F, 0.125F});
  EXPECT_EQ(score(contents), expected);
}

TEST(Layout, ExpertsOfAnotherSizeAreRefused) {
  GgufContents contents = with_experts();
  contents.keys["gemma4.expert_feed_forward_length"] = std::uint32_t{8};
  const testing::TemporaryFile file(contents);
  EXPECT_THAT(load_files(file.path()).status().message(),
              ::testing::HasSubstr("\"blk.0.ffn_gate_up_exps.weight\" has 128 x 32 values, "
                                   "expected 64 x 32"));
}

/// A drafter file with a centroid head of 8 clusters; the tokens are dealt out in turn.
GgufContents with_centroids() {
  GgufContents out = testing::toy_drafter();
  out.set_f32("masked_embd_centroids.weight", {8, 32}, random_values(8 * 32, 9));
  std::vector<std::int32_t> ordering(64);
  for (std::size_t i = 0; i < ordering.size(); ++i) {
    ordering[i] = static_cast<std::int32_t>(i % 8 * 8 + i / 8);
  }
  GgufContents::Tensor tensor{{64}, 26, std::vector<std::byte>(64 * sizeof(std::int32_t))};
  std::memcpy(tensor.bytes.data(), ordering.data(), tensor.bytes.size());
  out.tensors["masked_embd_ordering"] = tensor;
  return out;
}

TEST(Layout, ADrafterFileMayCarryTheCentroidHead) {
  const testing::TemporaryFile target(testing::toy_e_series());
  GgufContents drafter = with_centroids();
  const auto drafts_of = [&](model::DraftHead head, bool by_centroids) {
    const testing::TemporaryFile file(drafter);
    model::LoadOptions options;
    options.draft_head = head;
    auto model = load_files(target.path(), file.path(), options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ((*model)->drafts_by_centroids(), by_centroids);
    const std::vector<TokenId> prompt = {2, 9, 33, 60, 7};
    return testing::run_prompt(**model, prompt, 6).drafts;
  };
  // The best 32 of 8 clusters are the whole vocabulary: nothing is won.
  const auto dense = drafts_of(model::DraftHead::kAuto, false);
  drafter.keys["gemma4-assistant.masked_embd_top_k"] = std::uint32_t{2};
  EXPECT_EQ(drafts_of(model::DraftHead::kDense, false), dense);
  EXPECT_EQ(drafts_of(model::DraftHead::kAuto, true).size(), dense.size());
}

}  // namespace
}  // namespace tandem
