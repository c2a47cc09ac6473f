#include "tandem/engine/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tandem::engine {
namespace {

constexpr double kMemorySteps = 512;  // a measurement's weight halves in so many steps
constexpr double kMaxWeight = 8;      // a mean follows at least this fast: 1/8 per measurement
constexpr double kOutlier = 2.5;      // one late step (page faults, a busy host) counts this much
constexpr std::size_t kMaxCells = 96;
// Before much is known, a row costs this share of an empty step, and so on: a step is bound by the
// weights' bytes. Only the proportions matter; the level is measured.
constexpr std::array<double, 4> kPriorShape = {1.0, 0.06, 0.06, 0.01};
constexpr double kPriorWeight = 0.05;

// Exact up to 8, then four buckets an octave.
std::uint32_t bucket(int n) {
  const auto u = static_cast<std::uint32_t>(std::max(n, 0));
  if (u <= 8) return u;
  const auto octave = static_cast<std::uint32_t>(std::bit_width(u)) - 1;
  return 8 + (octave - 3) * 4 + ((u >> (octave - 2)) & 3U);
}

// Solves a x = b for a symmetric positive definite 4x4 matrix in place (elimination, no pivoting).
template <std::size_t N>
std::array<double, N> solve(std::array<std::array<double, N>, N> a, std::array<double, N> b) {
  for (std::size_t i = 0; i < N; ++i) {
    for (std::size_t r = i + 1; r < N; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (std::size_t c = i; c < N; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (std::size_t i = N; i-- > 0;) {
    for (std::size_t c = i + 1; c < N; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

StepCost::Features StepCost::features_of(const StepWork& work) {
  return {1.0, static_cast<double>(work.rows), static_cast<double>(work.draft_steps),
          static_cast<double>(work.draft_rows)};
}

std::uint32_t StepCost::key_of(const StepWork& work) {
  return bucket(work.sequences) << 16 | bucket(work.rows) << 8 | bucket(work.draft_steps);
}

double StepCost::faded_weight(const Cell& cell) const {
  return cell.weight * std::exp2(-static_cast<double>(now_ - cell.seen_at) / kMemorySteps);
}

const StepCost::Cell* StepCost::find(std::uint32_t key) const {
  const auto it = std::ranges::find(cells_, key, &Cell::key);
  return it == cells_.end() ? nullptr : &*it;
}

StepCost::Cell& StepCost::find_or_add(std::uint32_t key) {
  const auto it = std::ranges::find(cells_, key, &Cell::key);
  if (it != cells_.end()) return *it;
  if (cells_.size() < kMaxCells) return cells_.emplace_back(Cell{.key = key});
  Cell& oldest = *std::ranges::min_element(cells_, {}, &Cell::seen_at);
  oldest = Cell{.key = key};
  return oldest;
}

void StepCost::observe(const StepWork& work, double seconds) {
  ++now_;
  Cell& cell = find_or_add(key_of(work));
  const double weight = faded_weight(cell);
  if (weight >= 2.0) seconds = std::min(seconds, kOutlier * cell.seconds);
  const double share = 1.0 / std::min(weight + 1.0, kMaxWeight);
  cell.seconds += (seconds - cell.seconds) * share;
  const Features features = features_of(work);
  for (std::size_t i = 0; i < features.size(); ++i) {
    cell.features[i] += (features[i] - cell.features[i]) * share;
  }
  cell.weight = std::min(weight + 1.0, kMaxWeight);
  cell.seen_at = now_;
  fit();
}

double StepCost::linear(const Features& features) const {
  double sum = 0;
  for (std::size_t i = 0; i < features.size(); ++i) sum += theta_[i] * features[i];
  return sum;
}

// Weighted least squares of the relative error, drawn towards the prior's proportions at the level
// of what was measured.
void StepCost::fit() {
  double level = 0;
  double total = 0;
  for (const Cell& cell : cells_) {
    double shape = 0;
    for (std::size_t i = 0; i < kPriorShape.size(); ++i) shape += kPriorShape[i] * cell.features[i];
    level += faded_weight(cell) * cell.seconds / shape;
    total += faded_weight(cell);
  }
  level /= total;
  std::array<Features, kNumFeatures> a = {};
  Features b = {};
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double unit = level * kPriorShape[i];
    a[i][i] = kPriorWeight / (unit * unit);
    b[i] = kPriorWeight / unit;
  }
  for (const Cell& cell : cells_) {
    const double weight = faded_weight(cell);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const double x = cell.features[i] / cell.seconds;
      b[i] += weight * x;
      for (std::size_t j = 0; j < b.size(); ++j)
        a[i][j] += weight * x * cell.features[j] / cell.seconds;
    }
  }
  theta_ = solve(a, b);
  for (double& t : theta_) t = std::max(t, 0.0);
  if (theta_[0] <= 0.0) theta_[0] = 0.01 * level;  // keeps every prediction positive
}

double StepCost::predict(const StepWork& work) const {
  if (cells_.empty()) return 0;
  const double fitted = linear(features_of(work));
  const Cell* cell = find(key_of(work));
  if (cell == nullptr) return fitted;
  // Kernels have steps that no line shows, so a measured cell corrects the fit.
  const double weight = faded_weight(*cell);
  const double ratio = cell->seconds / linear(cell->features);
  return fitted * (1.0 + (ratio - 1.0) * weight / (weight + 0.5));
}

double StepCost::evidence(const StepWork& work) const {
  const Cell* cell = find(key_of(work));
  return cell == nullptr ? 0 : faded_weight(*cell);
}

}  // namespace tandem::engine
