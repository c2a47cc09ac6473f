// Attention over the cache, one thread, without the products around it:
//   attention_bench [ISA] [int8]
// Prints microseconds per stream and the rate, for decode, verification and prefill shapes. The
// streams of a shape are visited in turn, so that one reads its keys from L2, 32 from L3 and 256
// from memory.

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tandem/core/cpu_features.h"
#include "tandem/kernels/cpu/attention_task.h"
#include "tandem/kernels/cpu/kv_layout.h"

namespace tandem::kernels::cpu {
namespace {

struct Shape {
  int heads;
  int kv_heads;
  int head_size;
  int window;
  int keys;
  int rows;
  int streams;
};

/// Values in (-1, 1) from a fixed generator.
class Noise {
 public:
  float operator()() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31F;
  }

 private:
  std::uint64_t state_ = 1;
};

/// Slots, cache and queries of one shape: every stream holds `keys` positions of which the last
/// `rows` are queries.
class Setup {
 public:
  Setup(const Shape& shape, const MatmulKernels* int8) : shape_(shape) {
    Geometry g;
    g.max_sequences = shape.streams;
    g.max_rows = shape.streams * shape.rows;
    g.max_kept_rows = g.max_rows;
    g.hidden = 16;
    g.vocab = 16;
    const AttentionKind kind = shape.window > 0 ? AttentionKind::kSliding : AttentionKind::kFull;
    g.kv_layers = {{kind, shape.kv_heads, shape.head_size}};
    g.window = shape.window;
    const int pages = (shape.keys + kPageTokens - 1) / kPageTokens;
    const std::size_t code_bytes = int8 != nullptr ? 1 : 2;
    const std::size_t vector_bytes =
        code_bytes * static_cast<std::size_t>(shape.head_size) + kScaleBytes;
    const std::size_t page_bytes =
        2 * kPageTokens * static_cast<std::size_t>(shape.kv_heads) * vector_bytes;
    g.kv_memory_bytes = page_bytes * static_cast<std::size_t>(pages * shape.streams);
    step_.configure(g);
    fail_on(kv_.configure(g, kPageTokens, code_bytes, kScaleBytes));
    fail_on(work_.configure(shape.head_size));
    scratch_ = core::Arena::reserve(AttentionRunner::scratch_bytes(shape.head_size), false).value();
    in_.int8 = int8;
    fill_cache(pages * shape.streams);
    begin_step(kind, pages);
    in_.spec = {kind, shape.heads, shape.kv_heads, shape.head_size, 0, false};
    in_.window = shape.window;
    in_.rows = step_.rows(RowSet::kStep);
    queries_.resize(static_cast<std::size_t>(g.max_rows * shape.heads * shape.head_size));
    for (float& q : queries_) q = 0.1F * noise_();
    out_.resize(queries_.size());
    in_.queries = queries_.data();
    in_.out = out_.data();
    work_.plan({in_.spec, shape.window, g.max_rows, 1}, in_.rows, step_.runs(RowSet::kStep));
  }

  void run(const RowKernels& kernels) const {
    const AttentionRunner runner(kernels, kv_, step_, work_, in_);
    const std::span<const AttentionTask> tasks = work_.tasks();
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      runner.run(tasks[i], i + 1 < tasks.size() ? &tasks[i + 1] : nullptr, scratch_);
    }
  }

 private:
  static void fail_on(const core::Status& status) {
    TANDEM_CHECK(status.ok(), status.message().c_str());
  }

  void fill_cache(int pages) {
    const KvWriter& write =
        in_.int8 != nullptr ? row_kernels("scalar")->int8 : row_kernels("scalar")->int16;
    std::vector<float> x(static_cast<std::size_t>(shape_.head_size));
    for (int i = 0; i < pages * shape_.kv_heads * kPageTokens; ++i) {
      const int token = i % kPageTokens;
      const int head = i / kPageTokens % shape_.kv_heads;
      const PageId page = i / kPageTokens / shape_.kv_heads;
      for (float& v : x) v = noise_();
      write.key(x.data(), shape_.head_size, kv_.keys<std::byte>(0, page, head), token);
      write.value(x.data(), shape_.head_size, kv_.values<std::byte>(0, page, head), token);
    }
  }

  void begin_step(AttentionKind kind, int pages) {
    const std::vector<TokenId> prompt(static_cast<std::size_t>(shape_.rows), 0);
    std::vector<PageId> table(static_cast<std::size_t>(pages * shape_.streams));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<PageId>(i);
    StepPlan plan;
    for (int s = 0; s < shape_.streams; ++s) {
      Span span;
      span.slot = s;
      span.prompt = prompt;
      span.first_position = shape_.keys - shape_.rows;
      span.keep = Keep::kAll;
      span.pages[index_of(kind)] = std::span<const PageId>(table).subspan(
          static_cast<std::size_t>(s * pages), static_cast<std::size_t>(pages));
      plan.spans.push_back(span);
    }
    step_.begin(plan);
  }

  Shape shape_;
  Noise noise_;
  HostStep step_;
  HostKv kv_;
  AttentionWork work_;
  core::Arena scratch_;
  AttentionRunner::Inputs in_;
  std::vector<float> queries_;
  std::vector<float> out_;
};

double multiply_adds(const Shape& s) {
  double keys = 0;
  for (int r = 0; r < s.rows; ++r) {
    const int visible = s.keys - s.rows + r + 1;
    keys += s.window > 0 ? std::min(visible, s.window) : visible;
  }
  return 2.0 * keys * s.heads * s.head_size;
}

/// CPU time of this thread, so that other work on the machine costs caches but not time.
double thread_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

void measure(const Shape& shape, const RowKernels& kernels, const MatmulKernels* int8) {
  const Setup setup(shape, int8);
  std::vector<double> us;
  const double begin = thread_us();
  for (int i = 0; i < 200; ++i) {
    const double start = thread_us();
    setup.run(kernels);
    us.push_back((thread_us() - start) / shape.streams);
    if (i >= 4 && thread_us() - begin > 0.1e6) break;
  }
  std::sort(us.begin(), us.end());
  const double median = us[us.size() / 2];
  fmt::print("{:>5} {:>3} {:>5} {:>6} {:>6} {:>5} {:>7} {:>9.1f} {:>9.1f} {:>7.1f}\n", shape.heads,
             shape.kv_heads, shape.head_size, shape.window, shape.keys, shape.rows, shape.streams,
             median, us.front(), multiply_adds(shape) / median * 1e-3);
}

int run(int argc, char** argv) {
  const std::string isa = argc > 1 ? argv[1] : std::string(matmul_kernels("").value()->isa);
  const RowKernels* kernels = row_kernels(isa);
  if (kernels == nullptr) {
    fmt::print(stderr, "no kernels for {}\n", isa);
    return 1;
  }
  const bool is_int8 = argc > 2 && std::string(argv[2]) == "int8";
  const MatmulKernels* int8 = is_int8 ? matmul_kernels(isa).value() : nullptr;
  const auto run_shape = [&](const Shape& shape) {
    measure(shape, *kernels, int8);
  };
  fmt::print("{}\n{}, {} cache, 1 thread\n", core::describe_cpu(), isa,
             is_int8 ? "int8" : "16-bit");
  fmt::print("heads  kv  size window   keys  rows streams us/stream       min  GMAC/s\n");
  for (const int streams : {1, 32, 256}) {
    for (const int size : {256, 512}) {
      const int window = size == 256 ? 512 : 0;
      for (const int rows : {1, 2, 5}) run_shape({4, 1, size, window, 400, rows, streams});
    }
  }
  for (const int size : {256, 512}) {
    const int window = size == 256 ? 512 : 0;
    run_shape({8, 1, size, window, 4000, 1, 4});
    run_shape({8, 2, size, window, 4000, 1, 4});
    run_shape({8, 4, size, window, 4000, 1, 4});
    run_shape({4, 1, size, window, 512, 512, 1});
    run_shape({8, 2, size, window, 4096, 512, 1});
  }
  return 0;
}

}  // namespace
}  // namespace tandem::kernels::cpu

int main(int argc, char** argv) {
  return tandem::kernels::cpu::run(argc, argv);
}
