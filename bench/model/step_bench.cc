// Where the time of a decode step goes, by backend operation:
//   step_bench MODEL [DRAFTER] [--sequences 32] [--keys 400] [--drafts 0] [--steps 40]
//              [--threads N] [--isa NAME] [--device cuda] [--clock wall|cpu]
//              [--kv-type int8] [--prompt-rows 0] [--temperature 0] [--top-k 0] [--top-p PERCENT]
// On cuda times are wall times of a whole step, of which operations only enqueue their part. On the
// CPU times are CPU times of the calling thread, which waits by spinning: with --threads 1 they
// hold on a busy machine, too. --clock wall gives wall times there as well. Every sequence first
// gets a prompt of `keys` tokens; then each step decodes one token a sequence or, with --drafts,
// verifies and makes that many drafts. --prompt-rows: a step also begins another prompt with that
// many rows, of which it samples the last; with --sequences 0 it is a chunk whose rows nobody
// reads. Prints medians over the steps.

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../tests/kernels/forwarding_backend.h"
#include "tandem/core/cpu_features.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/model/model.h"

namespace tandem {
namespace {

using kernels::Rows;

clockid_t g_clock = CLOCK_THREAD_CPUTIME_ID;

/// CPU time of this thread in microseconds, on cuda wall time.
double thread_us() {
  timespec t;
  clock_gettime(g_clock, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

/// Keeps this thread where no worker of the team is pinned, should the machine be busy.
void take_first_core() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(0, &mask);
  sched_setaffinity(0, sizeof mask, &mask);
}

/// Passes every call on and adds up the time of each operation of a step.
class TimedBackend final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  /// Microseconds by operation since the last call.
  std::map<std::string_view, double> take_times() { return std::exchange(times_, {}); }

  StepShape begin_step(const kernels::StepPlan& plan) override {
    return timed("begin_step", [&] { return ForwardingBackend::begin_step(plan); });
  }
  void embed(const kernels::Weight& table, float scale, Rows x) override {
    timed("embed", [&] { ForwardingBackend::embed(table, scale, x); });
  }
  void ple_inputs(const kernels::PleInputWeights& w, Rows x, Rows ple) override {
    timed("ple_inputs", [&] { ForwardingBackend::ple_inputs(w, x, ple); });
  }
  void attention(const kernels::AttentionWeights& w, const kernels::AttentionSpec& spec,
                 Rows x) override {
    const bool is_draft = x.set == kernels::RowSet::kDraft;
    const bool is_full = spec.kind == kernels::AttentionKind::kFull;
    timed(is_draft ? "draft attention" : (is_full ? "attention, full" : "attention, sliding"),
          [&] { ForwardingBackend::attention(w, spec, x); });
  }
  void ffn(const kernels::FfnWeights& w, float scale, Rows x) override {
    timed(x.set == kernels::RowSet::kDraft ? "draft ffn" : "ffn",
          [&] { ForwardingBackend::ffn(w, scale, x); });
  }
  void moe(const kernels::MoeWeights& w, float scale, Rows x) override {
    timed("moe", [&] { ForwardingBackend::moe(w, scale, x); });
  }
  void ple(const kernels::PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) override {
    timed("ple", [&] { ForwardingBackend::ple(w, ple, layer, scale, x); });
  }
  void final_norm(const kernels::Head& head, Rows x, Rows h) override {
    timed("final_norm", [&] { ForwardingBackend::final_norm(head, x, h); });
  }
  void logits(const kernels::Head& head, Rows h, Rows out) override {
    timed("logits", [&] { ForwardingBackend::logits(head, h, out); });
  }
  void verify(const kernels::Head& head, Rows h) override {
    timed("verify", [&] { ForwardingBackend::verify(head, h); });
  }
  void draft_input(const kernels::DraftWeights& w, int i, Rows x) override {
    timed("draft_input", [&] { ForwardingBackend::draft_input(w, i, x); });
  }
  void draft_head(const kernels::DraftWeights& w, int i, Rows x) override {
    timed("draft_head", [&] { ForwardingBackend::draft_head(w, i, x); });
  }
  core::Result<kernels::StepResult> end_step() override {
    return timed("end_step", [&] { return ForwardingBackend::end_step(); });
  }

 private:
  template <typename F>
  std::invoke_result_t<F> timed(std::string_view name, F f) {
    struct Timer {
      double& us;
      double start = thread_us();
      ~Timer() { us += thread_us() - start; }
    } timer{times_[name]};
    return f();
  }

  std::map<std::string_view, double> times_;
};

struct Options {
  std::vector<std::string> paths;
  int sequences = 32;
  int keys = 400;
  int drafts = 0;
  int steps = 40;
  int prompt_rows = 0;
  int temperature = 0, top_k = 0, top_p_percent = 100;
  bool is_cuda = false;
  bool wants_wall_clock = false;
  kernels::KvType kv_type = kernels::KvType::kF16;
  kernels::CpuOptions cpu;
};

core::Result<Options> parse(int argc, char** argv) {
  Options o;
  const std::map<std::string_view, int*> numbers = {
      {"--sequences", &o.sequences},     {"--keys", &o.keys},
      {"--drafts", &o.drafts},           {"--steps", &o.steps},
      {"--threads", &o.cpu.threads},     {"--prompt-rows", &o.prompt_rows},
      {"--temperature", &o.temperature}, {"--top-k", &o.top_k},
      {"--top-p", &o.top_p_percent}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (!arg.starts_with("--")) {
      o.paths.emplace_back(arg);
      continue;
    }
    const std::string_view value = i + 1 < argc ? argv[++i] : "";
    const auto number = numbers.find(arg);
    if (arg == "--isa") {
      o.cpu.isa = value;
    } else if (arg == "--device") {
      o.is_cuda = value == "cuda";
    } else if (arg == "--kv-type") {
      o.kv_type = value == "int8" ? kernels::KvType::kInt8 : kernels::KvType::kF16;
    } else if (arg == "--clock") {
      o.wants_wall_clock = value == "wall";
    } else if (number == numbers.end() ||
               std::from_chars(value.begin(), value.end(), *number->second).ec != std::errc()) {
      return core::invalid_argument(fmt::format("{} {}: no such option or value", arg, value));
    }
  }
  if (o.paths.empty()) return core::invalid_argument("the path of a model is missing");
  return o;
}

/// Drives the model with a fixed set of sequences that all grow step by step.
class Bench {
 public:
  Bench(const Options& options, model::Model& model) : o_(options), model_(model) {
    const kernels::KvLayout& kv = model.limits().kv;
    const int positions = std::max(o_.prompt_rows, o_.keys + (o_.steps + 1) * (1 + o_.drafts));
    const int pages = (positions + kv.page_tokens - 1) / kv.page_tokens;
    tables_.resize(static_cast<std::size_t>(o_.sequences) + 1);
    // A device has sliding pages for windows alone. Where they do not suffice for every key,
    // sequences share some: what these then hold is wrong, how long it takes is not.
    PageId next = 0;
    for (auto& table : tables_) {
      for (int i = 0; i < pages; ++i, ++next) {
        for (std::size_t kind = 0; kind < table.size(); ++kind) {
          table[kind].push_back(next % kv.max_pages[kind]);
        }
      }
    }
  }

  core::Status prefill() {
    for (int s = 0; s < o_.sequences; ++s) {
      const std::vector<TokenId> prompt = prompt_of(s, o_.keys);
      model_.set_slot(s, {.temperature = static_cast<float>(o_.temperature),
                          .top_k = o_.top_k,
                          .top_p = static_cast<float>(o_.top_p_percent) / 100.0F,
                          .seed = static_cast<std::uint64_t>(s)});
      const int chunk = model_.limits().max_rows;
      for (int first = 0; first < o_.keys; first += chunk) {
        const int count = std::min(chunk, o_.keys - first);
        kernels::Span span = span_of(s);
        span.prompt = std::span<const TokenId>(prompt).subspan(static_cast<std::size_t>(first),
                                                               static_cast<std::size_t>(count));
        span.first_position = first;
        span.keep = first + count == o_.keys ? kernels::Keep::kLast : kernels::Keep::kNone;
        span.next_drafts = o_.drafts;
        TANDEM_TRY(model_.step({{span}}).status());
      }
    }
    return {};
  }

  core::Status decode() {
    kernels::StepPlan plan;
    for (int s = 0; s < o_.sequences; ++s) {
      kernels::Span span = span_of(s);
      span.num_drafts = o_.drafts;
      span.next_drafts = o_.drafts;
      plan.spans.push_back(span);
    }
    const std::vector<TokenId> prompt = prompt_of(o_.sequences, o_.prompt_rows);
    if (o_.prompt_rows > 0) {
      model_.set_slot(o_.sequences, {.temperature = 0.0F});
      kernels::Span span = span_of(o_.sequences);
      span.prompt = prompt;
      span.keep = o_.sequences > 0 ? kernels::Keep::kLast : kernels::Keep::kNone;
      plan.spans.push_back(span);
    }
    return model_.step(plan).status();
  }

 private:
  static std::vector<TokenId> prompt_of(int slot, int size) {
    std::vector<TokenId> prompt(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] =
          static_cast<TokenId>((i * 37 + static_cast<std::size_t>(slot) * 101) % 4000 + 200);
    }
    return prompt;
  }
  kernels::Span span_of(int slot) const {
    kernels::Span span;
    span.slot = slot;
    const auto& table = tables_[static_cast<std::size_t>(slot)];
    std::ranges::copy(table, span.pages.begin());
    return span;
  }

  const Options& o_;
  model::Model& model_;
  std::vector<std::array<std::vector<PageId>, kernels::kNumAttentionKinds>> tables_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

core::Status run(const Options& o) {
  if (o.is_cuda || o.wants_wall_clock) g_clock = CLOCK_MONOTONIC;
  TANDEM_ASSIGN(std::unique_ptr<kernels::Backend> inner,
                o.is_cuda ? kernels::open_cuda_backend({}) : kernels::make_cpu_backend(o.cpu));
  take_first_core();
  auto timed = std::make_unique<TimedBackend>(std::move(inner));
  TimedBackend& backend = *timed;
  model::LoadOptions load;
  load.target_path = o.paths[0];
  if (o.paths.size() > 1) load.draft_path = o.paths[1];
  load.max_sequences = o.sequences + (o.prompt_rows > 0 ? 1 : 0);
  load.kv_type = o.kv_type;
  load.max_rows = std::max(512, o.sequences * (1 + o.drafts) + o.prompt_rows);
  TANDEM_ASSIGN(std::unique_ptr<model::Model> model, model::Model::load(load, std::move(timed)));
  Bench bench(o, *model);
  TANDEM_TRY(bench.prefill());
  const auto prefill = backend.take_times();

  std::map<std::string_view, std::vector<double>> times;
  std::vector<double> totals;
  for (int i = 0; i < o.steps; ++i) {
    const double start = thread_us();
    TANDEM_TRY(bench.decode());
    totals.push_back(thread_us() - start);
    for (const auto& [name, us] : backend.take_times()) times[name].push_back(us);
  }
  const double total = median(totals);
  fmt::print("{}\n{}\n{} sequences, {} keys, {} drafts: {:.0f} us a step (least {:.0f})\n",
             core::describe_cpu(), backend.describe(), o.sequences, o.keys, o.drafts, total,
             *std::min_element(totals.begin(), totals.end()));
  fmt::print("{:<20} {:>9} {:>9} {:>6}   {:>10}\n", "operation", "us", "least", "share",
             "prefill us");
  for (const auto& [name, us] : times) {
    const auto in_prefill = prefill.find(name);
    fmt::print("{:<20} {:>9.1f} {:>9.1f} {:>5.1f}%   {:>10.0f}\n", name, median(us),
               *std::min_element(us.begin(), us.end()), 100 * median(us) / total,
               in_prefill == prefill.end() ? 0.0 : in_prefill->second);
  }
  return {};
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const auto options = tandem::parse(argc, argv);
  const tandem::core::Status status = options.ok() ? tandem::run(*options) : options.status();
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}
