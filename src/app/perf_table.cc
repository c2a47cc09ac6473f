#include "tandem/app/perf_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>

#include "tandem/core/checked_math.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using kernels::Backend;
using kernels::Keep;
using kernels::Rows;
using kernels::RowSet;
using kernels::Weight;

constexpr std::array kRowCounts = {1, 8, 32, 128, kPerfRows};
constexpr int kSamples = 7;
constexpr int kMostRepetitions = 400;

double bytes_of(const Weight* w) {
  return w == nullptr ? 0.0 : static_cast<double>(w->bytes());
}
double values_of(const Weight* w) {
  return w == nullptr ? 0.0 : static_cast<double>(w->rows()) * static_cast<double>(w->cols());
}

/// One sequence's rows of a step.
struct Rowing {
  int sequence = 0;
  int rows = 1;
  int history = 0;  ///< positions before them, in the cache
  Keep keep = Keep::kAll;
};

/// Runs and times operations on a backend.
class Stopwatch {
 public:
  Stopwatch(Backend& backend, const PerfModel& model, double seconds)
      : backend_(backend), model_(model), seconds_(seconds) {}

  core::Status allocate();
  core::Result<PerfTable> measure();

 private:
  using Operation = std::function<void(int)>;  // of one repetition

  /// Adds a row to the table: the time of one repetition of `operation` in a step of `rowing` for
  /// each sequence.
  core::Status time(PerfRow row, const std::vector<Rowing>& rowing, const Operation& operation,
                    int most_repetitions = kMostRepetitions);
  core::Result<double> run(const std::vector<Rowing>& rowing, const Operation& operation,
                           int repetitions);
  /// Writes the keys of positions [0, history) of so many sequences into a layer's cache.
  core::Status fill(const PerfLayers& layers, int sequences, int history);
  std::vector<PageId> pages(AttentionKind kind, int sequence, int positions);
  core::Status measure_layers(const PerfLayers& layers);
  core::Status measure_ffn(const PerfLayers& layers, int rows);
  core::Status measure_attention(const PerfLayers& layers, int sequences, int keys);
  core::Status measure_head(int rows);

  Backend& backend_;
  const PerfModel& model_;
  double seconds_;
  std::vector<TokenId> tokens_;
  Rows x_, h_, ple_;
  PerfTable table_;
};

core::Status Stopwatch::allocate() {
  tokens_.assign(kPerfRows, 0);
  const int width = model_.config.hidden;
  TANDEM_ASSIGN(x_, backend_.allocate_rows(kPerfRows, width, RowSet::kStep));
  TANDEM_ASSIGN(h_, backend_.allocate_rows(kPerfRows, width, RowSet::kStep));
  std::vector<float> values(static_cast<std::size_t>(kPerfRows * width));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 255) / 127.0F - 1.0F;
  }
  backend_.write(x_, values);
  if (model_.config.ple_width == 0) return {};
  TANDEM_ASSIGN(ple_, backend_.allocate_rows(kPerfRows, model_.config.ple_width, RowSet::kStep));
  values.resize(static_cast<std::size_t>(kPerfRows * model_.config.ple_width));
  backend_.write(ple_, values);
  return {};
}

/// Ids of the pages of one sequence: each has its own.
std::vector<PageId> Stopwatch::pages(AttentionKind kind, int sequence, int positions) {
  const kernels::KvLayout layout = backend_.kv_layout();
  const int count = core::ceil_div(positions, layout.page_tokens);
  const int all = layout.max_pages[static_cast<std::size_t>(kind)];
  std::vector<PageId> ids(static_cast<std::size_t>(count));
  // Where there is no room for all, the last sequences share.
  const int first = std::max(0, std::min(sequence * count, all - count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

core::Result<double> Stopwatch::run(const std::vector<Rowing>& rowing, const Operation& operation,
                                    int repetitions) {
  kernels::StepPlan plan;
  std::vector<std::array<std::vector<PageId>, kernels::kNumAttentionKinds>> tables;
  tables.reserve(rowing.size());
  for (const Rowing& r : rowing) {
    const int end = r.history + r.rows;
    tables.push_back({pages(AttentionKind::kSliding, r.sequence, end),
                      pages(AttentionKind::kFull, r.sequence, end)});
    kernels::Span span;
    span.slot = r.sequence;
    span.prompt = std::span(tokens_).first(static_cast<std::size_t>(r.rows));
    span.first_position = r.history;
    span.keep = r.keep;
    span.pages = {tables.back()[0], tables.back()[1]};
    plan.spans.push_back(span);
  }
  const auto begin = std::chrono::steady_clock::now();
  backend_.begin_step(plan);
  for (int i = 0; i < repetitions; ++i) operation(i);
  TANDEM_TRY(backend_.end_step().status());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

core::Status Stopwatch::time(PerfRow row, const std::vector<Rowing>& rowing,
                             const Operation& operation, int most_repetitions) {
  TANDEM_TRY(run(rowing, operation, 1).status());  // whatever happens once only
  TANDEM_ASSIGN(const double empty, run(rowing, operation, 0));
  TANDEM_ASSIGN(const double once, run(rowing, operation, 1));
  const double wished = seconds_ / kSamples / std::max(1e-6, once - empty);
  const int repetitions = static_cast<int>(std::clamp(wished, 1.0, double(most_repetitions)));
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    TANDEM_ASSIGN(const double base, run(rowing, operation, 0));
    TANDEM_ASSIGN(const double seconds, run(rowing, operation, repetitions));
    samples.push_back(std::max(1e-9, (seconds - base) / repetitions));
  }
  std::sort(samples.begin(), samples.end());
  const double median = samples[kSamples / 2];
  row.microseconds = median * 1e6;
  row.spread = (samples.back() - samples.front()) / median;
  table_.rows.push_back(std::move(row));
  return {};
}

core::Status Stopwatch::fill(const PerfLayers& layers, int sequences, int history) {
  kernels::AttentionSpec spec = layers.attention.front();
  spec.last_kv_owner = true;  // rows that are not kept write their keys and leave
  for (int s = 0; s < sequences; ++s) {
    for (int first = 0; first < history; first += kPerfRows) {
      const int rows = std::min(kPerfRows, history - first);
      const auto write = [&](int) {
        backend_.attention(layers.layers.front()->attention, spec, x_.prefix(rows));
      };
      TANDEM_TRY(run({{s, rows, first, Keep::kNone}}, write, 1).status());
    }
  }
  return {};
}

/// So many sequences with one row each.
std::vector<Rowing> single_rows(int sequences, int history, Keep keep) {
  std::vector<Rowing> rowing;
  for (int s = 0; s < sequences; ++s) rowing.push_back({s, 1, history, keep});
  return rowing;
}

core::Status Stopwatch::measure_ffn(const PerfLayers& layers, int rows) {
  const kernels::FfnWeights& w = layers.layers.front()->ffn;
  PerfRow row;
  row.op = "ffn";
  row.type = layers.type;
  row.shape = fmt::format("{} x {}", w.gate->rows(), w.gate->cols());
  row.rows = rows;
  row.bytes = bytes_of(w.gate) + bytes_of(w.up) + bytes_of(w.down);
  row.flops = 2.0 * rows * (values_of(w.gate) + values_of(w.up) + values_of(w.down));
  const auto run_one = [&](int i) {
    const auto n = static_cast<std::size_t>(i) % layers.layers.size();
    backend_.ffn(layers.layers[n]->ffn, 1.0F, x_.prefix(rows));
  };
  TANDEM_TRY(time(std::move(row), {{0, rows, 0, Keep::kAll}}, run_one));
  const kernels::PleLayerWeights& p = layers.layers.front()->ple;
  if (p.gate == nullptr) return {};
  PerfRow ple;
  ple.op = "ple";
  ple.type = layers.type;
  ple.shape = fmt::format("{} x {}", p.gate->rows(), p.gate->cols());
  ple.rows = rows;
  ple.bytes = bytes_of(p.gate) + bytes_of(p.projection);
  ple.flops = 2.0 * rows * (values_of(p.gate) + values_of(p.projection));
  return time(std::move(ple), {{0, rows, 0, Keep::kAll}}, [&](int i) {
    const auto n = static_cast<std::size_t>(i) % layers.layers.size();
    backend_.ple(layers.layers[n]->ple, ple_.prefix(rows), 0, 1.0F, x_.prefix(rows));
  });
}

core::Status Stopwatch::measure_attention(const PerfLayers& layers, int sequences, int keys) {
  const kernels::AttentionWeights& w = layers.layers.front()->attention;
  const kernels::AttentionSpec& spec = layers.attention.front();
  const bool is_sliding = spec.kind == AttentionKind::kSliding;
  const int seen = is_sliding ? std::min(keys, model_.config.window) : keys;
  PerfRow row;
  row.op = is_sliding ? "attention sliding" : "attention full";
  row.type = layers.type;
  row.shape = fmt::format("{} / {} heads of {}", spec.heads, spec.kv_heads, spec.head_size);
  row.rows = sequences;
  row.keys = seen;
  row.bytes = bytes_of(w.q) + bytes_of(w.k) + bytes_of(w.v) + bytes_of(w.out) +
              4.0 * sequences * seen * spec.kv_heads * spec.head_size;
  row.flops = 2.0 * sequences *
              (values_of(w.q) + values_of(w.k) + values_of(w.v) + values_of(w.out) +
               2.0 * seen * spec.heads * spec.head_size);
  TANDEM_TRY(fill(layers, sequences, keys - 1));
  return time(std::move(row), single_rows(sequences, keys - 1, Keep::kAll), [&](int i) {
    const auto n = static_cast<std::size_t>(i) % layers.layers.size();
    backend_.attention(layers.layers[n]->attention, layers.attention[n], x_.prefix(sequences));
  });
}

core::Status Stopwatch::measure_head(int rows) {
  PerfRow row;
  row.op = "head";
  row.type = model_.head_type;
  row.shape = fmt::format("{} x {}", model_.head.table->rows(), model_.head.table->cols());
  row.rows = rows;
  row.bytes = bytes_of(model_.head.table);
  row.flops = 2.0 * rows * values_of(model_.head.table);
  kernels::SamplingParams greedy;
  greedy.temperature = 0.0F;
  for (int slot = 0; slot < rows; ++slot) backend_.set_slot(slot, greedy);
  const auto verify = [&](int) {
    backend_.final_norm(model_.head, x_.prefix(rows), h_.prefix(rows));
    backend_.verify(model_.head, h_.prefix(rows));
  };
  return time(std::move(row), single_rows(rows, 0, Keep::kLast), verify, 1);  // once a step
}

core::Status Stopwatch::measure_layers(const PerfLayers& layers) {
  if (layers.layers.front()->ffn.gate != nullptr) {
    for (const int rows : kRowCounts) TANDEM_TRY(measure_ffn(layers, rows));
  }
  if (layers.layers.front()->attention.q == nullptr) return {};
  const bool is_full = layers.attention.front().kind == AttentionKind::kFull;
  const int longest = std::min(model_.config.max_context, is_full ? 8192 : 512);
  TANDEM_TRY(measure_attention(layers, 1, std::min(longest, 512)));
  TANDEM_TRY(measure_attention(layers, 32, std::min(longest, 512)));
  return is_full && longest > 512 ? measure_attention(layers, 1, longest) : core::Status();
}

core::Result<PerfTable> Stopwatch::measure() {
  table_.device = backend_.describe();
  TANDEM_ASSIGN(const double rate, backend_.read_rate());
  for (const PerfLayers& layers : model_.layers) TANDEM_TRY(measure_layers(layers));
  for (const int rows : kRowCounts) {
    if (rows <= kPerfSequences) TANDEM_TRY(measure_head(rows));
  }
  table_.read_gigabytes_per_s = rate * 1e-9;
  for (const PerfRow& row : table_.rows) {
    table_.peak_teraflops = std::max(table_.peak_teraflops, row.teraflops());
    if (rate > 0) continue;
    table_.read_gigabytes_per_s = std::max(table_.read_gigabytes_per_s, row.gigabytes_per_s());
  }
  return std::move(table_);
}

}  // namespace

double PerfTable::part_of_ceiling(const PerfRow& row) const {
  return std::max(row.gigabytes_per_s() / read_gigabytes_per_s, row.teraflops() / peak_teraflops);
}

core::Result<PerfTable> measure_table(kernels::Backend& backend, const PerfModel& model,
                                      double seconds) {
  Stopwatch stopwatch(backend, model, seconds);
  TANDEM_TRY(stopwatch.allocate());
  return stopwatch.measure();
}

}  // namespace tandem::app
