#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/model_files.h"
#include "tandem/model/weights.h"

namespace tandem::app {

/// One measured operation.
struct PerfRow {
  std::string op;           ///< "ffn", "attention sliding", ...
  std::string type;         ///< of its weights
  std::string shape;        ///< "10240 x 2560" and the like
  int rows = 0;             ///< T
  int keys = 0;             ///< that each row sees; 0: no attention
  double microseconds = 0;  ///< median
  double spread = 0;        ///< (largest - smallest) / median of the samples
  double bytes = 0;         ///< weights and keys that are read at least
  double flops = 0;         ///< of products and attention

  double gigabytes_per_s() const { return bytes / microseconds * 1e-3; }
  double teraflops() const { return flops / microseconds * 1e-6; }
};

/// All rows, and the ceilings that they are compared with, measured in the same run.
struct PerfTable {
  std::string device;
  double read_gigabytes_per_s = 0;  ///< of a sweep; where there is none, of the fastest operation
  double peak_teraflops = 0;        ///< of the fastest product
  std::vector<PerfRow> rows;

  /// Time that the ceilings allow, in parts of the time it took.
  double part_of_ceiling(const PerfRow& row) const;
};

/// Layers whose operations are measured, in the order in which repetitions go through them: enough
/// that their weights do not stay in a cache.
struct PerfLayers {
  std::string type;
  std::vector<const model::LayerWeights*> layers;
  std::vector<kernels::AttentionSpec> attention;  ///< of each
};

/// What is measured on a backend that is configured for it. Must not outlive the backend, nor the
/// model's files.
struct PerfModel {
  model::ModelConfig config;  ///< the shapes
  std::vector<PerfLayers> layers;
  kernels::Head head;
  std::string head_type;
  model::WeightStorage storage;
  std::vector<std::unique_ptr<model::LayerWeights>> owned_layers;
};

/// The largest steps of a measurement.
inline constexpr int kPerfRows = 512;
inline constexpr int kPerfSequences = 128;

/// Geometry for a model of these shapes.
kernels::Geometry perf_geometry(const model::ModelConfig& config);

/// The E4B shapes with random weights in every form, `copies` layers of each kind.
core::Result<PerfModel> builtin_perf_model(kernels::Backend& backend,
                                           const model::ModelConfig& shapes, int copies);
/// Shapes of E4B: two layers, sliding and full.
model::ModelConfig e4b_shapes();
/// A model's own weights.
core::Result<PerfModel> loaded_perf_model(kernels::Backend& backend, const model::ModelFiles& files,
                                          const model::ModelConfig& config);

/// Measures for about `seconds` a row. kInternal where the device fails.
core::Result<PerfTable> measure_table(kernels::Backend& backend, const PerfModel& model,
                                      double seconds);

}  // namespace tandem::app
