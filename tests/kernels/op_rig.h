#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "scaled_weights.h"
#include "tandem/core/dtype.h"
#include "tandem/core/tensor.h"
#include "tandem/kernels/backend.h"

/// What the tests of backend operations share: the backends of this machine, random weights in
/// every file format, and a backend that is set up for one case.
namespace tandem::test {

struct BackendFactory {
  std::string name;  ///< fit for a test name
  std::function<core::Result<std::unique_ptr<kernels::Backend>>()> make;
};

inline std::ostream& operator<<(std::ostream& out, const BackendFactory& f) {
  return out << f.name;
}

/// The reference first, then every other backend that can run on this machine: the CPU's in all
/// instruction sets, the fastest one also on one thread. Names end with the number of threads.
const std::vector<BackendFactory>& backend_factories();

/// A tensor with its bytes.
struct OwnedTensor {
  std::vector<std::byte> bytes;
  core::TensorView view;
};

/// [rows, cols] of normal values with the given mean and root mean square, or, for block formats,
/// random codes whose block scales give zero mean and about that root mean square.
OwnedTensor random_tensor(core::DType dtype, int rows, int cols, std::uint32_t seed, float rms,
                          float mean = 0.0F);

/// Normal values, mean 0, standard deviation 1.
std::vector<float> random_values(std::size_t size, std::uint32_t seed);

/// Dimensions of a case, small ones of each kind by default.
struct Dims {
  int hidden = 64;   // E
  int ffn = 96;      // F
  int vocab = 200;   // V
  int ple = 32;      // P
  int layers = 2;    // L, of the per-layer embeddings
  int heads = 4;     // H
  int kv_heads = 2;  // G
  std::array<int, kernels::kNumAttentionKinds> head_size = {32, 64};  // D by kind
  int window = 24;                                                    // W
  int max_sequences = 8;
  int max_rows = 1024;
  int experts = 6;      // X
  int expert_ffn = 64;  // F of an expert
  int top_k = 3;
  bool e4m3_blocks = false;   ///< F8_E4M3 with a scale for each 128 x 128, not FP8-Dynamic
  bool steps_repeat = false;  ///< kernels::Geometry
};

/// A configured backend, its weights and its pages.
class OpRig {
 public:
  /// Two KV layers of each kind, in the order S F S F. CHECKs that the backend accepts it.
  OpRig(const BackendFactory& factory, const Dims& dims);

  kernels::Backend& backend() { return *backend_; }
  const Dims& dims() const { return dims_; }

  /// A packed random weight: rms 1 / sqrt(cols) for linears, values around 1 for vectors, the
  /// given rms for tables. The same seed gives the same values on every backend. Linears of
  /// F8_E4M3 are FP8-Dynamic, those of U8 NVFP4; tables of both are BF16, as in such files.
  const kernels::Weight* linear(core::DType dtype, int rows, int cols, std::uint32_t seed,
                                kernels::WeightRole role = kernels::WeightRole::kLinear);
  const kernels::Weight* norm(int size, std::uint32_t seed, float scale = 1.0F);
  const kernels::Weight* table(core::DType dtype, int rows, int cols, std::uint32_t seed,
                               kernels::WeightRole role = kernels::WeightRole::kTableAndHead,
                               float rms = 1.0F);
  /// A table and head in f32 of the given values [rows, cols].
  const kernels::Weight* table(std::span<const float> values, int rows, int cols);

  /// Zeroed rows; or rows that hold random_values(seed).
  kernels::Rows rows(int num_rows, int cols, kernels::RowSet set);
  kernels::Rows random_rows(int num_rows, int cols, kernels::RowSet set, std::uint32_t seed);
  std::vector<float> read(const kernels::Rows& rows);

  /// Weights of an attention layer of the rig's dims whose scores spread by about 2.
  kernels::AttentionWeights attention_weights(core::DType dtype, kernels::AttentionKind kind,
                                              int hidden, bool owns_kv, bool value_is_key,
                                              std::uint32_t seed);
  /// Spec of a layer that reads the kind's KV layer `index` (0 or 1).
  kernels::AttentionSpec attention_spec(kernels::AttentionKind kind, int index) const;
  kernels::FfnWeights ffn_weights(core::DType dtype, int hidden, int ffn, std::uint32_t seed);
  /// A centroid head over a table [V, width] whose rows lie in the order of its tokens: `clusters`
  /// clusters, the best `top` of which are taken.
  kernels::CentroidHead centroid_head(core::DType dtype, int width, int clusters, int top,
                                      std::uint32_t seed);
  /// A layer of the rig's dims with that many experts, and a router in f32 whose choices differ.
  kernels::MoeWeights moe_weights(core::DType dtype, core::DType down_dtype, std::uint32_t seed);

  /// A prompt or decode span of `slot` with the page tables that the slot has.
  kernels::Span prompt(int slot, std::span<const TokenId> tokens, Position first,
                       kernels::Keep keep, int next_drafts = 0);
  kernels::Span decode(int slot, int num_drafts, int next_drafts);
  /// Gives the slot pages for positions [0, end), page ids in a scattered order.
  void reserve_pages(int slot, Position end);
  /// Takes the sliding pages away that no query at or after `first` can see.
  void drop_pages_before_window(int slot, Position first);

 private:
  const kernels::Weight* pack(OwnedTensor tensor, kernels::WeightRole role);
  const kernels::Weight* pack(const kernels::WeightView& view, kernels::WeightRole role);

  Dims dims_;
  std::unique_ptr<kernels::Backend> backend_;
  std::vector<std::unique_ptr<OwnedTensor>> tensors_;
  std::vector<std::unique_ptr<OwnedWeight>> scaled_;
  std::vector<std::unique_ptr<kernels::Weight>> weights_;
  std::vector<std::array<std::vector<PageId>, kernels::kNumAttentionKinds>> tables_;
  std::array<std::vector<PageId>, kernels::kNumAttentionKinds> free_pages_;
};

}  // namespace tandem::test
