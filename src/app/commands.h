#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/app/memory_need.h"
#include "tandem/bench/bench.h"
#include "tandem/kernels/backend.h"

namespace tandem::app {

/// How to load a model and with which bounds. Shared by serve and run.
struct ModelOptions {
  std::string model;      ///< GGUF file or Hugging Face directory of the target
  std::string draft;      ///< the same of its drafter; empty: none
  int threads = 0;        ///< compute threads; 0: all usable cores
  int draft_length = -1;  ///< -1: adaptive
  /// Rates at which drafts are accepted by chance, by position; empty: by what they say.
  std::vector<float> draft_acceptance;
  int max_sequences = 32;
  int max_queue = 256;              ///< requests that wait beside those
  int context = 65536;              ///< tokens of one request
  std::size_t kv_memory_bytes = 0;  ///< 0: as much as the model's sequences usually need
  kernels::KvType kv_type = kernels::KvType::kF16;
  std::string device = "auto";       ///< auto, cpu, cuda; or reference, for tests
  std::size_t gpu_memory_bytes = 0;  ///< of a GPU, in all; 0: what is free
  bool ple_on_host = false;  ///< per-layer embeddings in host memory, where a GPU reads their rows
};

struct ServeOptions {
  ModelOptions model;
  std::string name;  ///< of the model, for clients; empty: the one in its files
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  std::string tls_certificate, tls_key;   ///< PEM files; empty: no TLS
  std::string api_key_file;               ///< one key a line; empty: no key is asked for
  std::vector<std::string> cors_origins;  ///< pages that may call; "*": any
  double request_timeout_s = 0;           ///< of a whole answer; 0: none
  std::int64_t max_queue_tokens = 0;      ///< 0: no limit
};

struct RunOptions {
  ModelOptions model;
  std::string prompt;
  int max_tokens = 256;
  double temperature = -1.0;  ///< negative: as the model file recommends
};

struct InspectOptions {
  std::string path;    ///< GGUF file or Hugging Face directory
  std::string draft;   ///< the same of a drafter to be served with it; empty: none
  ServeBounds bounds;  ///< for the memory that serving would take
  bool as_json = false;
};

struct ConvertOptions {
  std::string input;   ///< GGUF file or Hugging Face directory
  std::string output;  ///< path that does not exist yet
  std::string form;    ///< "bf16" or "fp8" (directory), "q8_0" (GGUF file of an assistant)
};

struct PerfOptions {
  std::string
      model;        ///< GGUF file or Hugging Face directory; empty: random weights of E4B's shapes
  int threads = 0;  ///< compute threads; 0: all usable cores
  std::string device = "auto";
  bool as_json = false;
};

struct BenchCommand {
  bench::BenchOptions options;
  std::string output;  ///< JSON file; "-": standard output instead of the table; empty: none
};

/// The commands. Each returns the exit code: 0, or 1 after one sentence on standard error.
int serve_main(const ServeOptions& options);
int run_main(const RunOptions& options);
int bench_main(BenchCommand command);
int convert_main(const ConvertOptions& options);
/// Prints the report in any case; fails if the files cannot be served.
int inspect_main(const InspectOptions& options);
int perf_main(const PerfOptions& options);

/// Prints "tandem: MESSAGE" on standard error and returns 1.
int fail(const core::Status& status);

}  // namespace tandem::app
