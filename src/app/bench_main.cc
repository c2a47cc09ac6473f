#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>

#include "tandem/app/commands.h"
#include "tandem/core/print.h"

namespace tandem::app {
namespace {

std::atomic<bool> g_interrupt{false};

/// The first Ctrl-C ends the run and prints what was measured; the next one ends the program.
extern "C" void on_interrupt(int signal) {
  g_interrupt.store(true);
  std::signal(signal, SIG_DFL);
}

core::Status cannot_write(const std::string& path) {
  return core::invalid_argument(fmt::format("{}: cannot write the file; check the path", path));
}

/// Every request on its way has a socket. Raises the limit of open files as far as the user may.
core::Status allow_sockets(int concurrency) {
  constexpr rlim_t kOtherFiles = 32;
  const rlim_t needed = static_cast<rlim_t>(concurrency) + kOtherFiles;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return {};
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur >= needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return core::resource_exhausted(
      fmt::format("{} requests at a time need {} open files, but this process may have {}; raise "
                  "the limit (ulimit -n) or lower --concurrency",
                  concurrency, needed, limit.rlim_max));
}

}  // namespace

int bench_main(BenchCommand command) {
  const bool has_file = !command.output.empty() && command.output != "-";
  // Found out before a run of many minutes, and without emptying a file that is there.
  if (has_file && !std::ofstream(command.output, std::ios::app)) {
    return fail(cannot_write(command.output));
  }
  if (const core::Status status = allow_sockets(command.options.concurrency); !status.ok()) {
    return fail(status);
  }
  command.options.interrupt = &g_interrupt;
  command.options.on_start = [] {  // until then there is nothing to print
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGTERM, on_interrupt);
  };
  const auto report = bench::run_bench(command.options);
  if (!report.ok()) return fail(report.status());
  if (command.output == "-") {
    core::print(stdout, fmt::format("{}\n", bench::to_json(*report)));
  } else {
    core::print(stdout, bench::to_table(*report));
  }
  if (has_file) {
    std::ofstream file(command.output, std::ios::trunc);
    file << bench::to_json(*report) << '\n';
    file.close();
    if (!file) return fail(cannot_write(command.output));
  }
  if (report->errors() > 0) {
    return fail(core::unavailable(fmt::format("{} of {} requests failed; the row counts the others",
                                              report->errors(), report->asked)));
  }
  if (report->completed == 0) {
    return fail(core::unavailable(
        "no answer ended within the time, so that no tokens could be counted; allow more with "
        "--duration"));
  }
  return 0;
}

}  // namespace tandem::app
