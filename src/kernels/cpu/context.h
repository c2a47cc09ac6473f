#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/core/thread_team.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/cpu/attention_work.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"
#include "tandem/kernels/host_kv.h"
#include "tandem/kernels/host_step.h"
#include "tandem/kernels/sampling.h"

namespace tandem::kernels::cpu {

using Member = core::ThreadTeam::Member;

/// A part [begin, end) of some indices.
struct Range {
  int begin = 0;
  int end = 0;
};

/// Scratch rows of the operations, dense [rows, cols] in each. Sized for the widest weight, backed
/// by memory only where touched.
struct Workspace {
  core::Arena input;       ///< f32 inputs of a matrix product
  core::Arena attended;    ///< attention's output, the input of a second product
  core::Arena a, b, c;     ///< outputs of matrix products
  ActivationBuffer forms;  ///< of inputs

  /// Reserves for max_rows rows with up to max_inputs and max_outputs columns.
  core::Status reserve(int max_rows, int max_inputs, int max_outputs);
};

/// One matrix product of a phase: rows [first_row, first_row + rows) of its input, in tasks.
struct Product {
  const PackedMatrix* w = nullptr;
  float* out = nullptr;
  int ld = 0;
  int first_row = 0;
  int rows = 0;
  int panels_per_task = 0;
  int first_task = 0;
  int num_tasks = 0;
};

/// Experts of one row each at the same time, in moe().
inline constexpr int kRoutedRows = 2048;

/// Scratch of the mixture of experts: one row for each expert of each row of a chunk, an expert's
/// rows next to each other. Backed by memory only where touched.
struct MoeWorkspace {
  core::Arena input;              ///< [kRoutedRows, inputs]
  core::Arena gate, up, down;     ///< [kRoutedRows, outputs]
  ActivationBuffer forms;         ///< of `input` and `gate`
  core::Arena logits;             ///< [kRoutedRows, X] of the router, then probabilities
  std::vector<int> experts;       ///< [routed] by row, in ascending order within a row
  std::vector<float> weights;     ///< [routed] the expert's share in its row
  std::vector<int> places;        ///< [routed] the row of `input` that holds it
  std::vector<int> ends;          ///< [X] where the rows of an expert end
  std::vector<Product> products;  ///< three for every expert
  int max_inputs = 0;
  int max_outputs = 0;

  /// Makes room for experts of that shape; keeps what is wide enough.
  core::Status fit(int inputs, int outputs);
};

/// cos and sin of every row's angles, computed once per step and kind.
class RopeTables {
 public:
  core::Status configure(const Geometry& geometry);
  /// Forgets the tables of a row set.
  void reset(RowSet set);
  bool ready(RowSet set, AttentionKind kind) const { return ready_[at(set, kind)]; }
  void set_ready(RowSet set, AttentionKind kind) { ready_[at(set, kind)] = true; }
  /// Fills the table of one row.
  void fill(const RowKernels& kernels, RowSet set, AttentionKind kind, int row, Position position);

  int pairs(AttentionKind kind) const {
    return static_cast<int>(frequencies_[index_of(kind)].size());
  }
  const float* cosines(RowSet set, AttentionKind kind, int row) const;
  const float* sines(RowSet set, AttentionKind kind, int row) const {
    return cosines(set, kind, row) + pairs(kind);
  }

 private:
  static std::size_t at(RowSet set, AttentionKind kind) {
    return static_cast<std::size_t>(set) * kNumAttentionKinds + index_of(kind);
  }
  std::array<std::vector<float>, kNumAttentionKinds> frequencies_;  // without the zeros at the end
  std::array<core::Arena, 2 * kNumAttentionKinds> tables_;
  std::array<bool, 2 * kNumAttentionKinds> ready_ = {};
};

/// f32 values of a member's general scratch: a task's share of the logits stays in its L2 cache.
inline constexpr int kScratchFloats = 32 * 1024;

/// Scratch of one member of the team.
struct MemberScratch {
  core::Arena attention;     ///< AttentionRunner::scratch_bytes
  core::Arena floats;        ///< [max(kScratchFloats, 16 * rows)] logits of one task
  std::vector<RowMax> best;  ///< [rows] candidates for each row's token
  SamplingScratch sampling;
};

/// Everything that the operations share. Thread: the backend's caller; team members touch only
/// what the running phase gives them.
struct Context {
  explicit Context(int threads) : team(threads) {}

  core::ThreadTeam team;
  const MatmulKernels* matmul = nullptr;
  const RowKernels* kernels = nullptr;

  Geometry geometry;
  HostStep step;
  HostKv kv;
  RopeTables rope;
  Workspace workspace;
  MoeWorkspace moe;
  AttentionWork attention;
  std::vector<MemberScratch> members;
  core::Arena logits;  ///< [logit_rows, V] of rows that sample
  int logit_rows = 0;
  std::vector<float*> full_logits;  ///< [rows] where a row's logits go; null: not kept
  std::vector<TokenId> chosen;
  std::vector<int> clusters;  ///< [draft rows, top] of the centroid head

  float eps() const { return geometry.rms_eps; }
};

/// The member's part of [0, n); the same for the same n, so that rows stay in one core's cache.
inline Range share_of(const Member& m, int n) {
  return {n * m.index() / m.size(), n * (m.index() + 1) / m.size()};
}

/// Runs `job(Member)` on the team without copying it.
template <typename Job>
void run_team(Context& c, Job& job) {
  c.team.run(std::ref(job));
}

inline float* row_of(const Rows& x, int r) {
  return x.data + static_cast<std::ptrdiff_t>(r) * x.cols;
}
inline float* row_of(const core::Arena& rows, int r, int cols) {
  return rows.as<float>() + static_cast<std::ptrdiff_t>(r) * cols;
}

}  // namespace tandem::kernels::cpu
