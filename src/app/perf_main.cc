#include <fmt/core.h>

#include <boost/json.hpp>

#include "tandem/app/commands.h"
#include "tandem/app/loaded_model.h"
#include "tandem/app/perf_table.h"
#include "tandem/core/print.h"

namespace tandem::app {
namespace {

namespace json = boost::json;

// Enough that the layers' weights exceed every cache: 44 MB each at 4.5 bit.
constexpr int kCopies = 6;
constexpr double kSeconds = 0.1;

core::Result<PerfTable> measure(const PerfOptions& options) {
  ModelOptions device;
  device.device = options.device;
  device.threads = options.threads;
  TANDEM_ASSIGN(const auto backend, make_backend(device));
  if (options.model.empty()) {
    const model::ModelConfig shapes = e4b_shapes();
    TANDEM_TRY(backend->configure(perf_geometry(shapes)));
    TANDEM_ASSIGN(const PerfModel model, builtin_perf_model(*backend, shapes, kCopies));
    return measure_table(*backend, model, kSeconds);
  }
  TANDEM_ASSIGN(const auto files, model::ModelFiles::open(options.model));
  TANDEM_ASSIGN(const model::ModelConfig config, files->config());
  if (config.is_drafter()) {
    return core::failed_precondition(options.model + ": a drafter; give the model it drafts for");
  }
  TANDEM_TRY(backend->configure(perf_geometry(config)));
  TANDEM_ASSIGN(const PerfModel model, loaded_perf_model(*backend, *files, config));
  return measure_table(*backend, model, kSeconds);
}

void print_text(const PerfTable& table) {
  core::print(stdout, fmt::format("{}\nreads {:.0f} GB/s, multiplies up to {:.1f} TFLOP/s\n\n",
                                  table.device, table.read_gigabytes_per_s, table.peak_teraflops));
  core::print(stdout,
              fmt::format("{:<18} {:<9} {:<20} {:>4} {:>5} {:>10} {:>7} {:>8} {:>8} {:>8}\n",
                          "operation", "weights", "shape", "rows", "keys", "us", "spread", "GB/s",
                          "TFLOP/s", "ceiling"));
  for (const PerfRow& row : table.rows) {
    core::print(
        stdout,
        fmt::format(
            "{:<18} {:<9} {:<20} {:>4} {:>5} {:>10.1f} {:>6.0f}% {:>8.1f} {:>8.3f} {:>7.0f}%\n",
            row.op, row.type, row.shape, row.rows, row.keys > 0 ? std::to_string(row.keys) : "",
            row.microseconds, 100 * row.spread, row.gigabytes_per_s(), row.teraflops(),
            100 * table.part_of_ceiling(row)));
  }
}

void print_json(const PerfTable& table) {
  json::array rows;
  for (const PerfRow& row : table.rows) {
    rows.push_back({{"operation", row.op},
                    {"weights", row.type},
                    {"shape", row.shape},
                    {"rows", row.rows},
                    {"keys", row.keys},
                    {"median_us", row.microseconds},
                    {"spread", row.spread},
                    {"gigabytes_per_s", row.gigabytes_per_s()},
                    {"teraflops", row.teraflops()},
                    {"part_of_ceiling", table.part_of_ceiling(row)}});
  }
  const json::object out = {{"device", table.device},
                            {"read_gigabytes_per_s", table.read_gigabytes_per_s},
                            {"peak_teraflops", table.peak_teraflops},
                            {"rows", std::move(rows)}};
  core::print(stdout, fmt::format("{}\n", json::serialize(out)));
}

}  // namespace

int perf_main(const PerfOptions& options) {
  const auto table = measure(options);
  if (!table.ok()) return fail(table.status());
  options.as_json ? print_json(*table) : print_text(*table);
  return 0;
}

}  // namespace tandem::app
