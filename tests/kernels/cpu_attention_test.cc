// Attention over the CPU's cache, in 16 bits and in 8: against f64, and equal bits for every
// instruction set, tile of query vectors, way of cutting and number of members.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <vector>

#include "bits.h"
#include "present_kernels.h"
#include "tandem/kernels/cpu/attention_task.h"
#include "tandem/kernels/cpu/kv_layout.h"

namespace tandem::kernels::cpu {
namespace {

using test::bits;
using test::present_kernels;

/// What the cache and the queries hold.
enum class Pattern {
  kNormal,    ///< independent normal values
  kEqual,     ///< everything of one magnitude: sums of products are as large as they can be
  kOneLarge,  ///< the first key's score is 11 above all others; its values are 1, theirs are -1
  kOverflow   ///< every score is minus infinity
};

struct Case {
  int heads;
  int kv_heads;
  int head_size;
  int window;
  int first_position;  // of the query rows
  int rows;
  KvType kv = KvType::kF16;
  Pattern pattern = Pattern::kNormal;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  constexpr const char* kPatterns[] = {"", "_equal", "_one_large", "_overflow"};
  return out << (c.kv == KvType::kInt8 ? "int8_H" : "H") << c.heads << "_G" << c.kv_heads << "_D"
             << c.head_size << "_W" << c.window << "_p" << c.first_position << "_r" << c.rows
             << kPatterns[static_cast<int>(c.pattern)];
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
    EXPECT_TRUE(kv_.configure(g, kPageTokens, is_int8() ? 1 : 2, kScaleBytes).ok());
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
    if (c.pattern != Pattern::kNormal) {
      const float query =
          c.pattern == Pattern::kOverflow ? -1e20F : 5.5F / static_cast<float>(c.head_size);
      std::fill(queries_.begin(), queries_.end(), query);
    }
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
    if (!is_int8()) {
      std::vector<std::int16_t> codes(size);
      const float scale =
          row_kernels("scalar")->encode_query(q.data(), case_.head_size, codes.data(), 2);
      for (std::size_t d = 0; d < size; ++d) q[d] = scale * static_cast<float>(codes[d]);
      return q;
    }
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
        for (int token = 0; token < kPageTokens; ++token) write_position(page, g, token);
      }
    }
  }
  void write_position(PageId page, int kv_head, int token) {
    const int size = case_.head_size;
    std::vector<float> k = values(static_cast<std::size_t>(size), 1.0F);
    std::vector<float> v = values(static_cast<std::size_t>(size), 1.0F);
    const bool is_large = page == table_.front() && token == 0;
    if (case_.pattern == Pattern::kOverflow) {
      std::fill(k.begin(), k.end(), 1e20F);
    } else if (case_.pattern == Pattern::kEqual) {
      std::fill(k.begin(), k.end(), 1.0F);
      for (std::size_t d = 0; d < v.size(); ++d) v[d] = d % 2 == 0 ? 1.0F : -1.0F;
    } else if (case_.pattern == Pattern::kOneLarge) {
      std::fill(k.begin(), k.end(), is_large ? 1.0F : -1.0F);
      std::fill(v.begin(), v.end(), is_large ? 1.0F : -1.0F);
    }
    const RowKernels& kernels = *row_kernels("scalar");
    const KvWriter& write = is_int8() ? kernels.int8 : kernels.int16;
    write.key(k.data(), size, kv_.keys<std::byte>(0, page, kv_head), token);
    write.value(v.data(), size, kv_.values<std::byte>(0, page, kv_head), token);
  }
  /// Code `at` of a page with the scale of a token.
  template <typename Code>
  double decode(const Code* page, int at, int token) const {
    const auto* scales = reinterpret_cast<const float*>(page + kPageTokens * case_.head_size);
    return static_cast<double>(scales[token]) * (page[at] - (is_int8() ? kInt8Offset : 0));
  }
  double key(int position, int kv_head, int d) const {
    const PageId page = table_[static_cast<std::size_t>(position / kPageTokens)];
    if (is_int8()) {
      const int t = position % kPageTokens;
      const int at = t / 16 * 16 * case_.head_size + d / 4 * 64 + t % 16 * 4 + d % 4;
      return decode(kv_.keys<std::uint8_t>(0, page, kv_head), at, t);
    }
    const int t = position % kPageTokens;
    return decode(kv_.keys<std::int16_t>(0, page, kv_head), (d / 2 * kPageTokens + t) * 2 + d % 2,
                  t);
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
    const int at = chunk * kPageTokens + (token / 2 * width + d - chunk) * 2 + token % 2;
    return decode(kv_.values<std::int16_t>(0, page, kv_head), at, token);
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
  for (const int size : {32, 256, 512, 2048}) {
    cases.push_back({1, 1, size, 0, 255, 2, KvType::kF16, Pattern::kEqual});
    cases.push_back({4, 1, size, 0, 511, 1, KvType::kF16, Pattern::kEqual});
    cases.push_back({1, 1, size, 0, 255, 1, KvType::kF16, Pattern::kOneLarge});
  }
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
        // Weights of the softmax are rounded: to 1/127 of the largest one of a page, or to 1/32700
        // of the largest and 1/261000 of the sum of a block, rests going to later keys.
        const double tolerance = c.kv == KvType::kInt8 ? 0.03 : 6e-4;
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

TEST(CpuAttentionOfHugeValues, IsNoNumberHoweverItIsCut) {
  for (const KvType kv : {KvType::kF16, KvType::kInt8}) {
    Sequence sequence({2, 1, 128, 0, 1030, 2, kv, Pattern::kOverflow});
    for (const RowKernels* kernels : present_kernels()) {
      for (const int members : {1, 64}) {
        for (const float value : sequence.attend(*kernels, 2, members)) {
          ASSERT_TRUE(std::isnan(value)) << kernels->isa << ", " << members << " members";
        }
      }
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
