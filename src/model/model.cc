#include "tandem/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/core/log.h"
#include "tandem/model/gemma4.h"
#include "tandem/model/geometry.h"
#include "tandem/model/loader.h"
#include "tandem/model/memory_plan.h"
#include "tandem/model/model_files.h"
#include "tandem/model/mtp.h"

namespace tandem::model {
namespace {

using kernels::Rows;
using kernels::Span;
using kernels::StepPlan;

// Rows whose logits score() holds at once: bounds its memory at any vocabulary.
constexpr int kScoreRows = 16;
// Rows of a step far beyond any use.
constexpr int kMaxRows = 1 << 16;

/// counts[i] = spans of the plan that draft more than i tokens.
std::array<int, kMaxDraft> draft_rows_of_step(const StepPlan& plan) {
  std::array<int, kMaxDraft> counts = {};
  for (const Span& span : plan.spans) {
    if (!span.samples()) continue;
    TANDEM_CHECK(span.next_drafts <= kMaxDraft, "a span asks for more than kMaxDraft drafts");
    for (int i = 0; i < span.next_drafts; ++i) ++counts[static_cast<std::size_t>(i)];
  }
  return counts;
}

/// Files and configs of a pair that fits.
struct OpenPair {
  std::unique_ptr<ModelFiles> target_files;
  ModelConfig target;
  std::unique_ptr<ModelFiles> draft_files;  // null: no drafter
  ModelConfig drafter;
};

core::Result<OpenPair> open_pair(const LoadOptions& options) {
  OpenPair pair;
  TANDEM_ASSIGN(pair.target_files, ModelFiles::open(options.target_path));
  TANDEM_ASSIGN(pair.target, pair.target_files->config());
  if (pair.target.is_drafter()) {
    return core::failed_precondition(
        fmt::format("{}: this is a drafter ({}); give it as the draft model and a gemma4 model as "
                    "the model",
                    options.target_path, pair.target.family));
  }
  if (const std::string unused = pair.target_files->describe_unused(); !unused.empty()) {
    core::log_info(fmt::format("{}: text only, {} stay unused", options.target_path, unused));
  }
  if (options.draft_path.empty()) return pair;
  TANDEM_ASSIGN(pair.draft_files, ModelFiles::open(options.draft_path));
  TANDEM_ASSIGN(pair.drafter, pair.draft_files->config());
  auto fits = check_pair(pair.target, pair.drafter);
  if (fits.ok()) fits = check_same_vocab(*pair.target_files, *pair.draft_files);
  if (!fits.ok()) return fits.with_context(options.draft_path);
  return pair;
}

core::Result<kernels::Geometry> make_geometry(const LoadOptions& options, const OpenPair& pair) {
  if (options.max_sequences < 1 || options.max_rows < options.max_sequences ||
      options.max_context < 1) {
    return core::invalid_argument(fmt::format(
        "cannot run {} sequences in steps of {} rows with a context of {} tokens; each must be at "
        "least 1, and a step has a row for every sequence and at most {}",
        options.max_sequences, options.max_rows, options.max_context, kMaxRows));
  }
  kernels::Geometry geometry =
      geometry_of(pair.target, pair.draft_files != nullptr ? &pair.drafter : nullptr);
  geometry.max_sequences = options.max_sequences;
  geometry.max_rows = options.max_rows;
  geometry.max_kept_rows =
      options.max_kept_rows > 0 ? options.max_kept_rows : options.max_sequences * (1 + kMaxDraft);
  geometry.max_kept_rows = std::min(geometry.max_kept_rows, options.max_rows);
  geometry.kv_memory_bytes = options.kv_memory_bytes > 0 ? options.kv_memory_bytes : kUsualKvBytes;
  geometry.kv_type = options.kv_type;
  geometry.max_context = std::min(options.max_context, geometry.max_context);
  geometry.steps_repeat = true;
  geometry.acceptance = kernels::SyntheticAcceptance::of(options.draft_acceptance);
  return geometry;
}

class PairModel final : public Model {
 public:
  PairModel(OpenPair pair, std::unique_ptr<kernels::Backend> backend)
      : pair_(std::move(pair)), backend_(std::move(backend)) {}

  /// Configures the backend and packs the weights.
  core::Status prepare(const LoadOptions& options);

  const Limits& limits() const override { return limits_; }
  const ModelConfig& config() const override { return pair_.target; }
  bool has_drafter() const override { return drafter_.has_value(); }
  bool drafts_by_centroids() const override { return drafter_ && drafter_->uses_centroids(); }
  kernels::Backend& backend() override { return *backend_; }

  void set_slot(int slot, const kernels::SamplingParams& sampling) override {
    backend_->set_slot(slot, sampling);
  }
  core::Result<kernels::StepResult> step(const StepPlan& plan,
                                         const std::function<void()>& meanwhile) override;
  core::Result<std::vector<float>> score(std::span<const TokenId> tokens, int chunk,
                                         int first_row) override;

 private:
  /// Begins a step and runs the target; h of the kept rows.
  Rows run_target(const StepPlan& plan);
  core::Status check_score(std::span<const TokenId> tokens, int first_row) const;
  /// Appends the logits of every row of h to `out`.
  core::Status read_logits(Rows h, std::vector<float>& out);

  // Destroyed last to first: weights before the backend that packed them, both before the files
  // that tables may stay in.
  OpenPair pair_;
  std::unique_ptr<kernels::Backend> backend_;
  std::optional<Gemma4> target_;
  std::optional<MtpDrafter> drafter_;
  Limits limits_;
  Rows score_logits_;  // [kScoreRows, V], allocated by the first score()
};

core::Status PairModel::prepare(const LoadOptions& options) {
  TANDEM_ASSIGN(kernels::Geometry geometry, make_geometry(options, pair_));
  if (backend_->device_memory().has_value()) {
    if (options.kv_memory_bytes == 0) {
      geometry.kv_memory_bytes =
          usual_kv_bytes(pair_.target, geometry.max_sequences, geometry.max_context);
    }
    const PlannedPair pair = {*pair_.target_files, pair_.target, pair_.draft_files.get(),
                              pair_.drafter, options.draft_head};
    TANDEM_ASSIGN(const MemoryPlan plan,
                  plan_memory(pair, geometry, *backend_, options.device_memory_bytes));
    core::log_info(plan.describe());
    geometry.kv_memory_bytes = plan.kv;
  }
  TANDEM_TRY(backend_->configure(geometry));
  TANDEM_ASSIGN(auto weights, load_target(*pair_.target_files, pair_.target, *backend_));
  TANDEM_ASSIGN(target_, Gemma4::create(pair_.target, std::move(weights), *backend_,
                                        geometry.max_rows, geometry.max_kept_rows));
  if (pair_.draft_files != nullptr) {
    TANDEM_ASSIGN(auto draft_weights,
                  load_drafter(*pair_.draft_files, pair_.drafter, target_->weights(), *backend_,
                               options.draft_head));
    TANDEM_ASSIGN(drafter_,
                  MtpDrafter::create(pair_.target, pair_.drafter, std::move(draft_weights),
                                     *backend_, geometry.max_sequences));
  }
  pair_.draft_files.reset();  // packed as a whole
  pair_.target_files->forget_all();
  limits_.max_sequences = geometry.max_sequences;
  limits_.max_rows = geometry.max_rows;
  limits_.max_kept_rows = geometry.max_kept_rows;
  limits_.max_context = geometry.max_context;
  limits_.window = pair_.target.window;
  limits_.max_draft = has_drafter() ? kMaxDraft : 0;
  limits_.kv_memory_bytes = geometry.kv_memory_bytes;
  limits_.kv_is_reserved = backend_->device_memory().has_value();
  limits_.kv = backend_->kv_layout();
  limits_.runs_ahead = backend_->runs_ahead();
  return {};
}

Rows PairModel::run_target(const StepPlan& plan) {
  const kernels::Backend::StepShape shape = backend_->begin_step(plan);
  TANDEM_CHECK(shape.rows > 0 && shape.rows <= limits_.max_rows, "the step has too many rows");
  TANDEM_CHECK(shape.kept_rows <= limits_.max_kept_rows, "the step keeps too many rows");
  return target_->forward(shape);
}

core::Result<kernels::StepResult> PairModel::step(const StepPlan& plan,
                                                  const std::function<void()>& meanwhile) {
  const Rows h = run_target(plan);
  backend_->verify(target_->weights().head, h);
  const std::array<int, kMaxDraft> draft_rows = draft_rows_of_step(plan);
  const auto steps = std::find(draft_rows.begin(), draft_rows.end(), 0) - draft_rows.begin();
  TANDEM_CHECK(steps == 0 || drafter_, "the step asks for drafts, but no drafter is loaded");
  if (steps > 0) drafter_->draft(std::span(draft_rows).first(static_cast<std::size_t>(steps)));
  meanwhile();
  return backend_->end_step();
}

core::Status PairModel::check_score(std::span<const TokenId> tokens, int first_row) const {
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n < 1 || n > limits_.max_context || first_row < 0 || first_row >= n) {
    return core::invalid_argument(
        fmt::format("cannot score rows from {} on of a text of {} tokens; the context is {} tokens",
                    first_row, n, limits_.max_context));
  }
  for (TokenId token : tokens) {
    if (token < 0 || token >= pair_.target.vocab) {
      return core::invalid_argument(
          fmt::format("token {} is not in the vocabulary of {}", token, pair_.target.vocab));
    }
  }
  const std::int64_t pages = core::ceil_div(n, std::int64_t{limits_.kv.page_tokens});
  const std::size_t bytes =
      static_cast<std::size_t>(pages) * (limits_.kv.page_bytes[0] + limits_.kv.page_bytes[1]);
  if (bytes > limits_.kv_memory_bytes || pages > std::ranges::min(limits_.kv.max_pages)) {
    return core::resource_exhausted(fmt::format(
        "a text of {} tokens needs {} bytes of KV memory, half of them pages of either "
        "kind; there are {} bytes, or {} and {} pages",
        n, bytes, limits_.kv_memory_bytes, limits_.kv.max_pages[0], limits_.kv.max_pages[1]));
  }
  return {};
}

core::Status PairModel::read_logits(Rows h, std::vector<float>& out) {
  const std::size_t vocab = static_cast<std::size_t>(pair_.target.vocab);
  if (score_logits_.data == nullptr) {
    TANDEM_ASSIGN(score_logits_,
                  backend_->allocate_rows(kScoreRows, pair_.target.vocab, kernels::RowSet::kStep));
  }
  for (int r = 0; r < h.rows; r += kScoreRows) {
    const int rows = std::min(kScoreRows, h.rows - r);
    const Rows part = {h.data + static_cast<std::ptrdiff_t>(r) * h.cols, rows, h.cols, h.set};
    const Rows logits = score_logits_.prefix(rows);
    backend_->logits(target_->weights().head, part, logits);
    const std::size_t begin = out.size();
    out.resize(begin + static_cast<std::size_t>(rows) * vocab);
    backend_->read(logits, std::span(out).subspan(begin));
  }
  return {};
}

core::Result<std::vector<float>> PairModel::score(std::span<const TokenId> tokens, int chunk,
                                                  int first_row) {
  TANDEM_TRY(check_score(tokens, first_row));
  const int n = static_cast<int>(tokens.size());
  chunk = std::clamp(chunk, 1, limits_.max_kept_rows);
  std::vector<PageId> pages(static_cast<std::size_t>(core::ceil_div(n, limits_.kv.page_tokens)));
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<float> out;
  backend_->set_slot(0, {});
  StepPlan plan;
  plan.spans.resize(1);
  for (int begin = 0, end = 0; begin < n; begin = end) {
    const bool kept = begin >= first_row;
    end = std::min(begin + chunk, kept ? n : first_row);
    Span& span = plan.spans[0];
    span.prompt =
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    span.first_position = begin;
    span.keep = kept ? kernels::Keep::kAll : kernels::Keep::kNone;
    span.pages = {pages, pages};
    const Rows h = run_target(plan);
    TANDEM_TRY(read_logits(h, out));
    backend_->verify(target_->weights().head, h);
    TANDEM_ASSIGN(const kernels::StepResult result, backend_->end_step());
    if (result.spans[0].is_broken) return core::internal_error("a logit is not finite");
  }
  return out;
}

}  // namespace

core::Result<std::unique_ptr<Model>> Model::load(const LoadOptions& options,
                                                 std::unique_ptr<kernels::Backend> backend) {
  TANDEM_ASSIGN(auto pair, open_pair(options));
  auto model = std::make_unique<PairModel>(std::move(pair), std::move(backend));
  TANDEM_TRY(model->prepare(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace tandem::model
