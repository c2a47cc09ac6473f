// Attention over the CPU's cache, f16 and int8: against f64, and equal bits for every instruction
// set, tile of query vectors, way of cutting and number of members.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <vector>

#include "bits.h"
#include "present_kernels.h"
#include "tandem/core/half.h"
#include "tandem/kernels/cpu/attention_task.h"
#include "tandem/kernels/cpu/kv_int8.h"
#include "tandem/kernels/cpu/kv_layout.h"

namespace tandem::kernels::cpu {
namespace {

using test::bits;
using test::present_kernels;

struct Case {
  int heads;
  int kv_heads;
  int head_size;
  int window;
  int first_position;  // of the query rows
  int rows;
  KvType kv = KvType::kF16;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << (c.kv == KvType::kInt8 ? "int8_H" : "H") << c.heads << "_G" << c.kv_heads << "_D"
             << c.head_size << "_W" << c.window << "_p" << c.first_position << "_r" << c.rows;
}

/// One sequence whose cache holds random keys and values up to its last row, in pages out of order.
class Sequence {
 public:
  explicit Sequence(const Case& c) : case_(c), random_(7) {
    Geometry g;
    g.max_rows = c.rows;
    g.max_kept_rows = c.rows;
    g.hidden = 16;
    g.vocab = 16;
    g.window = c.window;
    g.kv_layers = {{kind(), c.kv_heads, c.head_size}};
    g.kv_memory_bytes = std::size_t{64} << 20;
    step_.configure(g);
    EXPECT_TRUE((is_int8() ? kv_.configure(g, kPageTokens, 1, kScaleBytes)
                           : kv_.configure(g, kPageTokens, sizeof(std::uint16_t)))
                    .ok());
    const int positions = c.first_position + c.rows;
    for (int i = 0; i * kPageTokens < positions; ++i) table_.push_back((i * 7 + 3) % 101);
    write_cache();

    const std::vector<TokenId> prompt(static_cast<std::size_t>(c.rows), 1);
    Span span;
    span.prompt = prompt;
    span.first_position = c.first_position;
    span.keep = Keep::kAll;
    span.pages[index_of(kind())] = table_;
    step_.begin({{span}});
    queries_ = values(static_cast<std::size_t>(c.rows * c.heads * c.head_size), 0.3F);
  }

  std::vector<float> attend(const RowKernels& kernels, int rows, int members) {
    AttentionWork work;
    EXPECT_TRUE(work.configure(case_.head_size).ok());
    const AttentionSpec spec = {kind(), case_.heads, case_.kv_heads, case_.head_size, 0, false};
    std::vector<float> out(static_cast<std::size_t>(rows * case_.heads * case_.head_size));
    const std::span<const RowInfo> infos = step_.rows(RowSet::kStep);
    work.plan({spec, case_.window, rows, members}, infos, step_.runs(RowSet::kStep));
    const AttentionRunner runner(kernels, kv_, step_, work,
                                 {spec, case_.window, infos, queries_.data(), out.data(),
                                  is_int8() ? matmul_kernels(kernels.isa).value() : nullptr});
    const core::Arena scratch =
        core::Arena::reserve(AttentionRunner::scratch_bytes(case_.head_size), false).value();
    for (const AttentionTask& task : work.tasks()) runner.run(task, &work.tasks()[0], scratch);
    for (const AttentionTask& task : work.merges()) runner.merge(task, scratch);
    return out;
  }

  /// The same in f64, straight from the definition.
  std::vector<double> exact(int row, int head) const {
    const int position = case_.first_position + row;
    const int first = case_.window > 0 ? std::max(0, position - case_.window + 1) : 0;
    const int kv_head = head / (case_.heads / case_.kv_heads);
    const std::vector<float> q = query(row, head);
    std::vector<double> scores;
    for (int j = first; j <= position; ++j) {
      double score = 0;
      for (int d = 0; d < case_.head_size; ++d) {
        score += q[static_cast<std::size_t>(d)] * key(j, kv_head, d);
      }
      scores.push_back(score);
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - top);
    std::vector<double> out(static_cast<std::size_t>(case_.head_size));
    for (int j = first; j <= position; ++j) {
      for (int d = 0; d < case_.head_size; ++d) {
        out[static_cast<std::size_t>(d)] +=
            scores[static_cast<std::size_t>(j - first)] / sum * value(j, kv_head, d);
      }
    }
    return out;
  }

 private:
  bool is_int8() const { return case_.kv == KvType::kInt8; }
  /// As the products see it.
  std::vector<float> query(int row, int head) const {
    const auto size = static_cast<std::size_t>(case_.head_size);
    const float* first = &queries_[static_cast<std::size_t>(row * case_.heads + head) * size];
    std::vector<float> q(first, first + size);
    if (!is_int8()) return q;
    std::vector<CodeGroup> groups(size / 32);
    kScalarKernels.quantize_row(q.data(), case_.head_size, groups.data());
    for (std::size_t d = 0; d < size; ++d) {
      q[d] = groups[d / 32].scale * static_cast<float>(groups[d / 32].codes[d % 32]);
    }
    return q;
  }
  AttentionKind kind() const {
    return case_.window > 0 ? AttentionKind::kSliding : AttentionKind::kFull;
  }
  std::vector<float> values(std::size_t size, float scale) {
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> out(size);
    for (float& v : out) v = normal(random_);
    return out;
  }
  /// Every value of the pages, those of positions to come included: they must not be seen.
  void write_cache() {
    for (const PageId page : table_) {
      for (int g = 0; g < case_.kv_heads; ++g) {
        if (is_int8()) {
          write_int8(page, g);
          continue;
        }
        const auto size = static_cast<std::size_t>(kPageTokens * case_.head_size);
        const std::vector<float> k = values(size, 1.0F);
        const std::vector<float> v = values(size, 1.0F);
        for (std::size_t i = 0; i < size; ++i) {
          kv_.keys<std::uint16_t>(0, page, g)[i] = core::f32_to_f16(k[i]);
          kv_.values<std::uint16_t>(0, page, g)[i] = core::f32_to_f16(v[i]);
        }
      }
    }
  }
  void write_int8(PageId page, int kv_head) {
    for (int token = 0; token < kPageTokens; ++token) {
      const std::vector<float> k = values(static_cast<std::size_t>(case_.head_size), 1.0F);
      const std::vector<float> v = values(static_cast<std::size_t>(case_.head_size), 1.0F);
      store_key_int8(k.data(), case_.head_size, kv_.keys<std::uint8_t>(0, page, kv_head), token);
      store_value_int8(v.data(), case_.head_size, kv_.values<std::uint8_t>(0, page, kv_head),
                       token);
    }
  }
  /// Byte `at` of an int8 page with the scale of a token.
  double decode(const std::uint8_t* page, int at, int token) const {
    const auto* scales = reinterpret_cast<const float*>(page + kPageTokens * case_.head_size);
    return static_cast<double>(scales[token]) * (page[at] - kCodeOffset);
  }
  double key(int position, int kv_head, int d) const {
    const PageId page = table_[static_cast<std::size_t>(position / kPageTokens)];
    if (is_int8()) {
      const int t = position % kPageTokens;
      const int at = t / 16 * 16 * case_.head_size + d / 4 * 64 + t % 16 * 4 + d % 4;
      return decode(kv_.keys<std::uint8_t>(0, page, kv_head), at, t);
    }
    return core::f16_to_f32(
        kv_.keys<std::uint16_t>(0, page, kv_head)[d * kPageTokens + position % kPageTokens]);
  }
  double value(int position, int kv_head, int d) const {
    const PageId page = table_[static_cast<std::size_t>(position / kPageTokens)];
    const int token = position % kPageTokens;
    if (is_int8()) {
      const int at = d / 16 * 16 * kPageTokens + token / 4 * 64 + d % 16 * 4 + token % 4;
      return decode(kv_.values<std::uint8_t>(0, page, kv_head), at, token);
    }
    const int chunk = d / kValueChunk * kValueChunk;
    const int width = std::min(kValueChunk, case_.head_size - chunk);
    return core::f16_to_f32(kv_.values<std::uint16_t>(
        0, page, kv_head)[chunk * kPageTokens + token * width + d - chunk]);
  }

  Case case_;
  std::mt19937 random_;
  HostStep step_;
  HostKv kv_;
  std::vector<PageId> table_;
  std::vector<float> queries_;
};

std::vector<Case> cases() {
  std::vector<Case> cases = {
      {1, 1, 16, 0, 0, 1},       // one key
      {4, 1, 256, 512, 399, 1},  // the demo's decode rows
      {4, 1, 512, 0, 399, 5},    // and verification
      {8, 1, 64, 0, 250, 20},    // rows on both sides of a block's end
      {8, 2, 48, 0, 0, 70},      // a prompt from its start
      {16, 1, 32, 100, 600, 3},  // 16 heads on one KV head
      {4, 4, 80, 40, 511, 30},   // a window of a few pages moving on
      {2, 1, 128, 0, 1030, 2},   // five blocks
      {6, 2, 32, 300, 1000, 7},  // three heads on a KV head
  };
  for (std::size_t i = 0, n = cases.size(); i < n; ++i) {
    Case c = cases[i];
    c.kv = KvType::kInt8;
    c.head_size = (c.head_size + 31) / 32 * 32;
    cases.push_back(c);
  }
  return cases;
}

class CpuAttention : public testing::TestWithParam<Case> {};

TEST_P(CpuAttention, AgreesWithTheDefinition) {
  Sequence sequence(GetParam());
  const Case& c = GetParam();
  const std::vector<float> out = sequence.attend(*present_kernels().back(), c.rows, 1);
  const auto size = static_cast<std::size_t>(c.head_size);
  for (int row = 0; row < c.rows; row += std::max(1, c.rows / 4)) {
    for (int head = 0; head < c.heads; ++head) {
      const std::vector<double> expected = sequence.exact(row, head);
      const std::size_t offset = static_cast<std::size_t>(row * c.heads + head) * size;
      for (std::size_t d = 0; d < size; ++d) {
        // Scores of size 20 from chains of up to 512 f32 sums: 2e-6 each, doubled by exp. int8:
        // weights of the softmax are rounded to 1/127 of the largest one of a page.
        const double tolerance = c.kv == KvType::kInt8 ? 0.03 : 3e-5;
        ASSERT_NEAR(out[offset + d], expected[d], tolerance) << row << " " << head << " " << d;
      }
    }
  }
}

TEST_P(CpuAttention, HasTheSameBitsInEveryInstructionSetAndCut) {
  Sequence sequence(GetParam());
  const std::vector<std::uint32_t> first =
      bits(sequence.attend(*row_kernels("scalar"), GetParam().rows, 1));
  for (const RowKernels* kernels : present_kernels()) {
    for (const int members : {1, 2, 64}) {
      ASSERT_EQ(bits(sequence.attend(*kernels, GetParam().rows, members)), first)
          << kernels->isa << ", " << members << " members";
    }
  }
}

TEST_P(CpuAttention, ARowsBitsDoNotDependOnTheRowsAfterIt) {
  Sequence sequence(GetParam());
  for (const RowKernels* kernels : present_kernels()) {
    const std::vector<std::uint32_t> all = bits(sequence.attend(*kernels, GetParam().rows, 1));
    for (const int rows : {1, GetParam().rows / 2}) {
      if (rows == 0) continue;
      std::vector<std::uint32_t> some = bits(sequence.attend(*kernels, rows, 2));
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << kernels->isa;
    }
  }
}

// The largest magnitude is 127, so that the values are the codes.
TEST(Int8Cache, CodesAreTheNearestAndTiesAreEven) {
  std::vector<float> x(32, 0.0F);
  const std::vector<float> first = {127.0F, 0.5F,  1.5F,   2.5F,          -0.5F,  -1.5F,
                                    -2.5F,  63.5F, 126.5F, 0.4999999702F, -127.0F};
  const std::vector<int> codes = {127, 0, 2, 2, 0, -2, -2, 64, 126, 0, -127};
  std::copy(first.begin(), first.end(), x.begin());
  std::vector<std::uint8_t> keys(kPageTokens * (x.size() + kScaleBytes));
  std::vector<std::uint8_t> values = keys;
  for (const int token : {0, 17, 31}) {
    store_key_int8(x.data(), 32, keys.data(), token);
    store_value_int8(x.data(), 32, values.data(), token);
    for (int d = 0; d < static_cast<int>(codes.size()); ++d) {
      const int key_at = token / 16 * 512 + d / 4 * 64 + token % 16 * 4 + d % 4;
      const int value_at = token / 4 * 64 + d * 4 + token % 4;
      const int code = codes[static_cast<std::size_t>(d)] + kCodeOffset;
      EXPECT_EQ(keys[static_cast<std::size_t>(key_at)], code) << d;
      EXPECT_EQ(values[static_cast<std::size_t>(value_at)], code) << d;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuAttention, testing::ValuesIn(cases()), [](const auto& info) {
  std::ostringstream name;
  name << info.param;
  return name.str();
});

}  // namespace
}  // namespace tandem::kernels::cpu
