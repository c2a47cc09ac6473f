#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tandem::engine {

/// What a step had to do, as far as its time depends on it.
struct StepWork {
  int sequences = 0;    ///< decode spans
  int rows = 0;         ///< of the decode spans, drafts included
  int draft_steps = 0;  ///< longest draft made for the next step
  int draft_rows = 0;   ///< drafts made, over all sequences

  /// `sequences` spans that verify and make k drafts each, step after step.
  static StepWork steady(int sequences, int k) {
    return {sequences, sequences * (1 + k), k, sequences * k};
  }
};

/// Seconds of a step by its work, learned while running: a table of measured means by (sequences,
/// rows, draft steps) in buckets, and a linear fit through the table for what was never measured.
/// Old measurements lose weight. Thread: engine.
class StepCost {
 public:
  void observe(const StepWork& work, double seconds);

  /// Expected seconds; 0 before the first observation.
  double predict(const StepWork& work) const;
  /// How many fresh measurements back predict(work); fades with the steps since.
  double evidence(const StepWork& work) const;

 private:
  static constexpr int kNumFeatures = 4;
  using Features = std::array<double, kNumFeatures>;
  struct Cell {
    std::uint32_t key = 0;
    Features features = {};  // mean over the measurements
    double seconds = 0;      // mean, outliers clipped
    double weight = 0;       // measurements, faded up to `seen_at`
    std::uint64_t seen_at = 0;
  };

  static Features features_of(const StepWork& work);
  static std::uint32_t key_of(const StepWork& work);
  double faded_weight(const Cell& cell) const;
  const Cell* find(std::uint32_t key) const;
  Cell& find_or_add(std::uint32_t key);
  double linear(const Features& features) const;
  void fit();

  std::vector<Cell> cells_;
  Features theta_ = {};  // seconds per unit of each feature
  std::uint64_t now_ = 0;
};

}  // namespace tandem::engine
