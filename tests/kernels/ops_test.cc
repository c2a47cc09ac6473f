// Every backend operation, on every backend, against the reference, from one table of cases.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "op_rig.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::AttentionKind;
using kernels::Keep;
using kernels::Rows;
using kernels::RowSet;

enum class Op { kEmbed, kPleInputs, kAttention, kFfn, kMoe, kPle, kHead, kDraft };

/// Rows of one sequence: `history` positions are in the cache already.
struct Rowing {
  int history = 0;
  int rows = 1;
};

struct OpCase {
  std::string name;
  Op op = Op::kFfn;
  DType dtype = DType::kF32;
  Dims dims;
  std::vector<Rowing> sequences = {{0, 1}};
  AttentionKind kind = AttentionKind::kSliding;
  bool value_is_key = false;
  std::optional<DType> down_dtype = {};  // of experts; else dtype
  int clusters = 0;                      // of the drafter's head; 0: dense
  int top_clusters = 0;
};

std::ostream& operator<<(std::ostream& out, const OpCase& c) {
  return out << c.name;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

/// Largest root mean square of a row's error, relative to that of the reference's row. The only
/// place where the tests of operations say how exact a backend must be:
/// - gathered rows and norms: a few roundings of f32;
/// - plain float weights: f32 sums of up to 4096 products in another order, about 1e-6;
/// - attention with float weights: K and V may be kept in f16 (2^-11 relative each), which the
///   softmax of scores that spread by 2 raises to about 1e-3;
/// - block weights: activations may be int8 with one scale per 32 to 128 values. The rounding error
///   is uniform with the step max / 127, and the mean maximum of 32 to 128 normal values is 2.1 to
///   2.7: 0.5 to 0.6 % of a product's input, up to 1.4 % behind gate * up, whose tails are longer.
///   Two or three products follow each other in ffn and ple, and attention has the softmax in
///   between. Measured at 128: one product 0.8 %, ffn 2.4 %, attention 3.1 %.
/// - FP8-Dynamic: activations are rounded to e4m3 by all alike, but an input that differs in its
///   last bit may take the next code, 2^-4 away: that of one in 256 inputs moves a row by 0.4 %;
/// - FP8 on CUDA: inputs pass through fp16, so that one in 128 takes the next code; measured 4.7 %;
/// - CUDA: the inputs of products, and weights that have no packed form, are fp16: 2^-11 each.
double tolerance(const std::string& backend, Op op, DType dtype) {
  const double floor = backend == "cuda" ? 1e-3 : 0.0;
  switch (op) {
    case Op::kEmbed:
      return std::max(floor, 1e-6);
    case Op::kPleInputs:
    case Op::kHead:
      return is_float(dtype) ? std::max(floor, 1e-5) : 1.2e-2;
    case Op::kFfn:
    case Op::kMoe:
    case Op::kPle:
      return is_float(dtype) ? std::max(floor, 1e-5) : 3e-2;
    case Op::kAttention:
    case Op::kDraft:
      if (backend == "cuda" && dtype == DType::kF8E4M3) return 6e-2;
      return is_float(dtype) ? 3e-3 : 4e-2;
  }
  return 0.0;
}

/// What an operation computed, as rows.
struct Output {
  int cols = 0;
  std::vector<float> values;
  std::vector<TokenId> drafts;

  void append(OpRig& rig, const Rows& rows) {
    const std::vector<float> read = rig.read(rows);
    cols = rows.cols;
    values.insert(values.end(), read.begin(), read.end());
  }
};

std::vector<TokenId> some_tokens(int count, int vocab, int seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((7 * i + 31 * seed + i * i) % vocab);
  return tokens;
}

/// Starts a step of the case's rows. With drafts, all sequences sample their last row and draft.
kernels::Backend::StepShape begin(OpRig& rig, const OpCase& c, int next_drafts = 0) {
  kernels::StepPlan plan;
  std::vector<std::vector<TokenId>> tokens;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    tokens.push_back(some_tokens(c.sequences[s].rows, c.dims.vocab, static_cast<int>(s)));
  }
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    plan.spans.push_back(rig.prompt(static_cast<int>(s), tokens[s], c.sequences[s].history,
                                    next_drafts > 0 ? Keep::kLast : Keep::kAll,
                                    std::max(0, next_drafts - static_cast<int>(s))));
  }
  return rig.backend().begin_step(plan);
}

Output run_embed(OpRig& rig, const OpCase& c) {
  Output out;
  for (const auto role : {kernels::WeightRole::kTable, kernels::WeightRole::kTableAndHead}) {
    const auto* table = rig.table(c.dtype, c.dims.vocab, c.dims.hidden, 1, role);
    const auto shape = begin(rig, c);
    const Rows x = rig.rows(shape.rows, c.dims.hidden, RowSet::kStep);
    rig.backend().embed(*table, 7.5F, x);
    EXPECT_TRUE(rig.backend().end_step().ok());
    out.append(rig, x);
  }
  return out;
}

Output run_ple_inputs(OpRig& rig, const OpCase& c) {
  const int width = c.dims.layers * c.dims.ple;
  const kernels::PleInputWeights w = {
      rig.table(c.dtype, c.dims.vocab, width, 1, kernels::WeightRole::kTable,
                1.0F / std::sqrt(static_cast<float>(c.dims.ple))),  // so that both parts count
      rig.linear(c.dtype, width, c.dims.hidden, 2), rig.norm(c.dims.ple, 3)};
  const auto shape = begin(rig, c);
  const Rows x = rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 4);
  const Rows ple = rig.rows(shape.rows, width, RowSet::kStep);
  rig.backend().ple_inputs(w, x, ple);
  EXPECT_TRUE(rig.backend().end_step().ok());
  Output out;
  out.append(rig, ple);
  return out;
}

/// Fills the caches of all sequences up to their history.
void write_history(OpRig& rig, const OpCase& c, const kernels::AttentionWeights& w,
                   const kernels::AttentionSpec& spec) {
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    const int history = c.sequences[s].history;
    if (history == 0) continue;
    const std::vector<TokenId> tokens(static_cast<std::size_t>(history), 1);
    rig.backend().begin_step({{rig.prompt(static_cast<int>(s), tokens, 0, Keep::kNone)}});
    const Rows x =
        rig.random_rows(history, c.dims.hidden, RowSet::kStep, 100 + static_cast<std::uint32_t>(s));
    rig.backend().attention(w, spec, x);
    EXPECT_TRUE(rig.backend().end_step().ok());
    rig.drop_pages_before_window(static_cast<int>(s), history);
  }
}

/// A layer that owns its KV, then one that shares it.
Output run_attention(OpRig& rig, const OpCase& c) {
  const auto w = rig.attention_weights(c.dtype, c.kind, c.dims.hidden, true, c.value_is_key, 1);
  const auto sharing = rig.attention_weights(c.dtype, c.kind, c.dims.hidden, false, false, 20);
  const kernels::AttentionSpec spec = rig.attention_spec(c.kind, 1);
  write_history(rig, c, w, spec);
  const auto shape = begin(rig, c);
  const Rows x = rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 5);
  Output out;
  rig.backend().attention(w, spec, x);
  out.append(rig, x);
  rig.backend().attention(sharing, spec, x);
  out.append(rig, x);
  EXPECT_TRUE(rig.backend().end_step().ok());
  return out;
}

Output run_ffn(OpRig& rig, const OpCase& c) {
  const auto w = rig.ffn_weights(c.dtype, c.dims.hidden, c.dims.ffn, 1);
  const auto shape = begin(rig, c);
  const Rows x = rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 6);
  rig.backend().ffn(w, 0.7F, x);
  EXPECT_TRUE(rig.backend().end_step().ok());
  Output out;
  out.append(rig, x);
  return out;
}

Output run_moe(OpRig& rig, const OpCase& c) {
  const auto w = rig.moe_weights(c.dtype, c.down_dtype.value_or(c.dtype), 1);
  const auto shape = begin(rig, c);
  const Rows x = rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 6);
  rig.backend().moe(w, 0.7F, x);
  EXPECT_TRUE(rig.backend().end_step().ok());
  Output out;
  out.append(rig, x);
  return out;
}

Output run_ple(OpRig& rig, const OpCase& c) {
  const kernels::PleLayerWeights w = {rig.linear(c.dtype, c.dims.ple, c.dims.hidden, 1),
                                      rig.linear(c.dtype, c.dims.hidden, c.dims.ple, 2),
                                      rig.norm(c.dims.hidden, 3)};
  const auto shape = begin(rig, c);
  const Rows x = rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 7);
  const Rows ple = rig.random_rows(shape.rows, c.dims.layers * c.dims.ple, RowSet::kStep, 8);
  rig.backend().ple(w, ple, c.dims.layers - 1, 1.3F, x);
  EXPECT_TRUE(rig.backend().end_step().ok());
  Output out;
  out.append(rig, x);
  return out;
}

/// Final norm and softcapped logits.
Output run_head(OpRig& rig, const OpCase& c) {
  const kernels::Head head = {rig.norm(c.dims.hidden, 1),
                              rig.table(c.dtype, c.dims.vocab, c.dims.hidden, 2), 30.0F};
  const auto shape = begin(rig, c);
  const Rows x = rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 9);
  const Rows h = rig.rows(shape.rows, c.dims.hidden, RowSet::kStep);
  const Rows logits = rig.rows(shape.rows, c.dims.vocab, RowSet::kStep);
  rig.backend().final_norm(head, x, h);
  rig.backend().logits(head, h, logits);
  EXPECT_TRUE(rig.backend().end_step().ok());
  Output out;
  out.append(rig, logits);
  for (float& value : out.values) {
    if (value == -std::numeric_limits<float>::infinity()) value = -100.0F;
  }
  return out;
}

/// The weights of a drafter's ends; a head of its own dtype if the case names one, with clusters if
/// it says so.
kernels::DraftWeights draft_ends(OpRig& rig, const OpCase& c, int width, DType head_dtype) {
  kernels::DraftWeights ends = {
      rig.table(c.dtype, c.dims.vocab, c.dims.hidden, 32),
      rig.linear(c.dtype, width, 2 * c.dims.hidden, 33),
      rig.linear(c.dtype, c.dims.hidden, width, 34),
      {rig.norm(width, 35), rig.linear(head_dtype, c.dims.vocab, width, 36), 0.0F},
      8.0F};
  if (c.clusters > 0) {
    ends.centroids = rig.centroid_head(head_dtype, width, c.clusters, c.top_clusters, 37);
  }
  return ends;
}

/// A draft round: input, attention over the target's cache, and the hidden rows that each step
/// hands on. Both heads are f32 and read given rows, so that every backend drafts the same tokens.
Output run_draft(OpRig& rig, const OpCase& c) {
  const int width = 2 * c.dims.hidden;  // d, unlike E
  const auto w = rig.attention_weights(c.dtype, c.kind, c.dims.hidden, true, false, 1);
  const auto drafting = rig.attention_weights(c.dtype, c.kind, width, false, false, 20);
  const kernels::AttentionSpec spec = rig.attention_spec(c.kind, 0);
  const kernels::Head target_head = {
      rig.norm(c.dims.hidden, 30), rig.table(DType::kF32, c.dims.vocab, c.dims.hidden, 31), 30.0F};
  const kernels::DraftWeights ends = draft_ends(rig, c, width, DType::kF32);
  write_history(rig, c, w, spec);
  const auto shape = begin(rig, c, 3);
  rig.backend().attention(w, spec, rig.random_rows(shape.rows, c.dims.hidden, RowSet::kStep, 5));
  rig.backend().verify(target_head,
                       rig.random_rows(shape.kept_rows, c.dims.hidden, RowSet::kStep, 6));
  Output out;
  out.cols = c.dims.hidden;
  for (int i = 0; i < shape.draft_steps; ++i) {
    const int num_rows = std::min(shape.draft_rows, 3 - i);
    const Rows x = rig.rows(num_rows, width, RowSet::kDraft);
    rig.backend().draft_input(ends, i, x);
    out.append(rig, x);
    rig.backend().attention(drafting, spec, x);
    out.append(rig, x);
    rig.backend().write(x, random_values(static_cast<std::size_t>(num_rows * width), 40));
    rig.backend().draft_head(ends, i, x);
  }
  EXPECT_TRUE(rig.backend().end_step().ok());
  for (int s = 0; s < shape.draft_rows; ++s) {
    const kernels::SlotSnapshot slot = rig.backend().read_slot(s);
    out.values.insert(out.values.end(), slot.draft_hidden.begin(), slot.draft_hidden.end());
    for (const TokenId token : slot.drafts) out.drafts.push_back(token);
  }
  out.cols = c.dims.hidden;
  return out;
}

Output run(const BackendFactory& factory, const OpCase& c) {
  OpRig rig(factory, c.dims);
  switch (c.op) {
    case Op::kEmbed:
      return run_embed(rig, c);
    case Op::kPleInputs:
      return run_ple_inputs(rig, c);
    case Op::kAttention:
      return run_attention(rig, c);
    case Op::kFfn:
      return run_ffn(rig, c);
    case Op::kMoe:
      return run_moe(rig, c);
    case Op::kPle:
      return run_ple(rig, c);
    case Op::kHead:
      return run_head(rig, c);
    case Op::kDraft:
      return run_draft(rig, c);
  }
  return {};
}

// ---- the table ----------------------------------------------------------------------------------

/// E, F and P that hold whole blocks of every format.
Dims block_dims() {
  Dims dims;
  dims.hidden = 256;
  dims.ffn = 512;
  dims.ple = 256;
  dims.expert_ffn = 256;
  return dims;
}

Dims head_dims(int hidden, int heads, int kv_heads, int head_size, int window) {
  Dims dims;
  dims.hidden = hidden;
  dims.heads = heads;
  dims.kv_heads = kv_heads;
  dims.head_size = {head_size, head_size};
  dims.window = window;
  return dims;
}

void add_weight_cases(std::vector<OpCase>& cases) {
  const std::vector<Rowing> mixed = {{0, 1}, {0, 5}, {0, 3}};
  Dims three_blocks = block_dims();
  three_blocks.hidden = 768;
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
        DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
        DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kNVFP4, DType::kF8E4M3,
        DType::kU8}) {
    const std::string name(core::name(dtype));
    cases.push_back({"Embed_" + name, Op::kEmbed, dtype, block_dims(), mixed});
    cases.push_back({"PleInputs_" + name, Op::kPleInputs, dtype, block_dims(), mixed});
    cases.push_back({"Ffn_" + name, Op::kFfn, dtype, block_dims(), mixed});
    cases.push_back({"Moe_" + name, Op::kMoe, dtype, block_dims(), mixed});
    cases.push_back({"Ple_" + name, Op::kPle, dtype, three_blocks, mixed});
    cases.push_back({"Head_" + name, Op::kHead, dtype, block_dims(), mixed});
  }
  // Widths that are no multiple of any vector or group, and many rows.
  Dims odd;
  odd.hidden = 72;
  odd.ffn = 104;
  odd.ple = 24;
  odd.vocab = 331;
  const std::vector<Rowing> many = {{0, 67}};
  cases.push_back({"Embed_OddWidths", Op::kEmbed, DType::kF32, odd, many});
  cases.push_back({"PleInputs_OddWidths", Op::kPleInputs, DType::kF32, odd, many});
  cases.push_back({"Ffn_OddWidths", Op::kFfn, DType::kF32, odd, many});
  cases.push_back({"Moe_OddWidths", Op::kMoe, DType::kF32, odd, many});
  // FP8 with scales of 128 x 128, and of what is left of a row.
  Dims blocks = block_dims();
  blocks.e4m3_blocks = true;
  cases.push_back({"Ffn_F8_E4M3_Blocks", Op::kFfn, DType::kF8E4M3, blocks, many});
  blocks.hidden = 320;
  cases.push_back({"Ffn_F8_E4M3_OddBlocks", Op::kFfn, DType::kF8E4M3, blocks, many});
  // What is left of K-quants in rows of 704, which are no multiple of 256, and of Q8_0 in rows of
  // 40, which are none of 32.
  Dims fallback = block_dims();
  fallback.expert_ffn = 704;
  for (const DType dtype : {DType::kQ5_0, DType::kQ5_1, DType::kQ8_0}) {
    cases.push_back(
        {"Moe_Q4_K_" + std::string(core::name(dtype)), Op::kMoe, DType::kQ4_K, fallback, many});
    cases.back().down_dtype = dtype;
  }
  fallback.expert_ffn = 40;
  cases.push_back({"Moe_Q8_0_F16", Op::kMoe, DType::kQ8_0, fallback, many});
  cases.back().down_dtype = DType::kF16;
  odd.experts = 40;
  odd.top_k = 40;
  cases.push_back({"Moe_AllExpertsInSeveralChunks", Op::kMoe, DType::kF32, odd, many});
  odd.top_k = 1;
  cases.push_back({"Moe_OneExpert", Op::kMoe, DType::kF32, odd, many});
  cases.push_back({"Ple_OddWidths", Op::kPle, DType::kF32, odd, many});
  cases.push_back({"Ple_Q4_K_OneBlock", Op::kPle, DType::kQ4_K, block_dims(), many});
  cases.push_back({"Head_OddWidths", Op::kHead, DType::kF32, odd, many});
  Dims odd_blocks = odd;
  odd_blocks.hidden = 96;
  odd_blocks.ffn = 160;
  cases.push_back({"Ffn_Q8_0_OddBlocks", Op::kFfn, DType::kQ8_0, odd_blocks, many});
  cases.push_back({"Head_Q4_0_OddBlocks", Op::kHead, DType::kQ4_0, odd_blocks, many});
}

void add_attention_cases(std::vector<OpCase>& cases, AttentionKind kind) {
  const std::string name = kind == AttentionKind::kFull ? "AttentionFull_" : "AttentionSliding_";
  const auto add = [&](const std::string& what, DType dtype, const Dims& dims,
                       const std::vector<Rowing>& sequences) {
    cases.push_back({name + what, Op::kAttention, dtype, dims, sequences, kind});
  };
  const std::vector<Rowing> mixed = {{0, 9}, {40, 1}, {31, 5}, {63, 2}, {100, 16}};
  for (const int size : {32, 64, 128, 256, 512}) {
    add("D" + std::to_string(size), DType::kF32, head_dims(64, 4, 2, size, 24), mixed);
  }
  for (const int heads : {1, 2, 8, 16}) {
    const std::string ratio = "H" + std::to_string(heads) + "_G1";
    add(ratio, DType::kF32, head_dims(64, heads, 1, 64, 24), mixed);
  }
  add("H4_G4", DType::kF32, head_dims(64, 4, 4, 32, 24), mixed);
  add("ValueIsKey", DType::kF32, head_dims(64, 4, 2, 64, 24), mixed);
  cases.back().value_is_key = true;
  // Across the blocks of keys that a backend may cut the cache into.
  add("LongHistory", DType::kF32, head_dims(64, 4, 1, 64, 512), {{900, 6}, {511, 2}, {255, 3}});
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kU8, DType::kQ8_0,
                            DType::kQ4_K, DType::kQ6_K}) {
    const std::vector<Rowing> few = {{60, 1}, {5, 5}, {0, 20}};
    add(std::string(core::name(dtype)), dtype, head_dims(256, 4, 1, 128, 40), few);
  }
}

void add_draft_cases(std::vector<OpCase>& cases, AttentionKind kind) {
  const std::string name = kind == AttentionKind::kFull ? "DraftFull_" : "DraftSliding_";
  const Dims dims = head_dims(256, 2, 1, 256, 24);
  const std::vector<Rowing> sequences = {{30, 5}, {0, 1}, {60, 3}};
  for (const DType dtype : {DType::kF32, DType::kQ8_0, DType::kQ4_K}) {
    cases.push_back(
        {name + std::string(core::name(dtype)), Op::kDraft, dtype, dims, sequences, kind});
  }
  // Clusters of 16, of 12 (which share panels), and of one token each.
  Dims clustered = dims;
  clustered.vocab = 192;
  for (const int clusters : {12, 16, 192}) {
    OpCase c = {name + "Clusters" + std::to_string(clusters),
                Op::kDraft,
                DType::kF32,
                clustered,
                sequences,
                kind};
    c.clusters = clusters;
    c.top_clusters = clusters / 4;
    cases.push_back(c);
  }
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  add_weight_cases(cases);
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    add_attention_cases(cases, kind);
    add_draft_cases(cases, kind);
  }
  return cases;
}

class OpsAgainstReference : public ::testing::TestWithParam<std::tuple<BackendFactory, OpCase>> {};

TEST_P(OpsAgainstReference, Agree) {
  const auto& [factory, c] = GetParam();
  static std::map<std::string, Output> references;  // by case
  if (references.count(c.name) == 0) references[c.name] = run(backend_factories().front(), c);
  const Output& expected = references[c.name];
  const Output actual = run(factory, c);
  ASSERT_EQ(actual.values.size(), expected.values.size());
  ASSERT_FALSE(expected.values.empty());
  EXPECT_EQ(actual.drafts, expected.drafts);
  const auto cols = static_cast<std::size_t>(expected.cols);
  double worst = 0.0;
  for (std::size_t begin = 0; begin < expected.values.size(); begin += cols) {
    double error = 0.0, size = 0.0;
    for (std::size_t i = begin; i < begin + cols; ++i) {
      const double e = expected.values[i], a = actual.values[i];
      error += (a - e) * (a - e);
      size += e * e;
    }
    ASSERT_GT(size, 0.0) << "the case computes nothing in row " << begin / cols;
    worst = std::max(worst, std::isfinite(error) ? std::sqrt(error / size) : HUGE_VAL);
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_LE(worst, tolerance(factory.name, c.op, c.dtype));
}

INSTANTIATE_TEST_SUITE_P(All, OpsAgainstReference,
                         ::testing::Combine(::testing::ValuesIn(backend_factories()),
                                            ::testing::ValuesIn(all_cases())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace tandem::test
