#include <fmt/core.h>

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "tandem/app/commands.h"
#include "tandem/app/option_text.h"
#include "tandem/core/print.h"
#include "tandem/core/printable.h"

namespace {

using tandem::app::BenchCommand;
using tandem::app::ConvertOptions;
using tandem::app::InspectOptions;
using tandem::app::ModelOptions;
using tandem::app::PerfOptions;
using tandem::app::RunOptions;
using tandem::app::ServeOptions;

constexpr int kUsageError = 2;

/// Adds an option whose text `parse` turns into `target`; the message says what is `expected`.
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App* app, const char* name, T* target, Parse parse,
                        const char* default_text, const char* expected, const char* help) {
  const auto read = [=](const CLI::results_t& texts) {
    const auto value = parse(texts.at(0));
    if (!value)
      throw CLI::ValidationError(name, fmt::format("expected {}, not {}", expected, texts.at(0)));
    *target = T(*value);
    return true;
  };
  return app->add_option(name, read, help)->type_name("TEXT")->default_str(default_text);
}

/// A finite number within bounds; CLI::Range lets NaN pass.
CLI::Validator number_within(double min, double max) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0.0;
    if (CLI::detail::lexical_cast(text, value) && value >= min && value <= max) return "";
    return fmt::format("{} is not a number from {} to {}", text, min, max);
  };
  return CLI::Validator(check, fmt::format("{} to {}", min, max));
}

/// An empty text is a variable that was not set, not a wish for the default.
CLI::Validator not_empty() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "is empty" : ""; }, "");
}

void add_device(CLI::App* app, std::string* device) {
  app->add_option("--device", *device,
                  "auto, cpu or cuda; auto: the GPU if there is one this build can use")
      ->capture_default_str()
      ->type_name("TEXT")
      ->check([](const std::string& text) {
        const bool is_known = text == "auto" || text == "cpu" || text == "cuda" ||
                              text == "reference";  // the last is for tests
        return is_known ? std::string() : fmt::format("expected auto, cpu or cuda, not {}", text);
      });
}

void add_model_options(CLI::App* app, ModelOptions* options) {
  app->add_option("--model", options->model,
                  "Gemma 4 model: a GGUF file or a Hugging Face directory")
      ->required()
      ->type_name("PATH");
  app->add_option("--draft", options->draft, "its MTP drafter, of either kind")
      ->type_name("PATH")
      ->check(not_empty());
  app->add_option("--threads", options->threads, "compute threads; 0: all cores of this process")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  add_parsed(app, "--draft-length", &options->draft_length, tandem::app::parse_draft_length, "auto",
             "auto or a number from 0 to 8", "tokens to draft a step: auto or 0..8");
  add_parsed(app, "--draft-acceptance", &options->draft_acceptance, tandem::app::parse_acceptance,
             "", "descending rates such as 0.646,0.418",
             "accept drafts at these rates, whatever they say: the answers are INVALID; to measure "
             "speed with random weights");
  app->add_option("--context", options->context, "most tokens of a prompt and its answer")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24));
  add_parsed(app, "--kv-memory", &options->kv_memory_bytes, tandem::app::parse_kv_memory, "auto",
             "auto or a size such as 512MiB or 2GiB",
             "most memory for the KV cache; auto: 2 GiB, on a GPU also what all sequences need");
  add_parsed(
      app, "--kv-type", &options->kv_type, tandem::app::parse_kv_type, "f16", "f16 or int8",
      "values of the KV cache: f16 (on the CPU 16-bit integers with scales, as exact), or int8 on "
      "the CPU: half the memory, a little less exact");
  add_device(app, &options->device);
  add_parsed(
      app, "--gpu-memory", &options->gpu_memory_bytes, tandem::app::parse_size, "",
      "a size such as 6GiB",
      "most memory of the GPU in all; the KV cache shrinks to fit; default: all that is free");
  add_parsed(
      app, "--ple", &options->ple_on_host,
      [](const std::string& text) {
        return text == "host" || text == "device" ? std::optional(text == "host") : std::nullopt;
      },
      "device", "device or host",
      "where a GPU keeps the per-layer embeddings: its own memory or the host's");
}

/// A fixed draft length without a drafter is a slip, not a wish.
void check_model_options(const ModelOptions& options) {
  if (options.draft_length > 0 && options.draft.empty()) {
    throw CLI::ValidationError("--draft-length", "needs a drafter; give one with --draft");
  }
  if (!options.draft_acceptance.empty() && options.draft.empty()) {
    throw CLI::ValidationError("--draft-acceptance", "needs a drafter; give one with --draft");
  }
}

/// Who may call the server, and how much of it.
void add_limits(CLI::App* serve, ServeOptions* options) {
  serve
      ->add_option("--max-queue", options->model.max_queue,
                   "requests that wait at most; more get 429")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  serve
      ->add_option("--max-queue-tokens", options->max_queue_tokens,
                   "prompt tokens that wait at most; more get 429; 0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  serve
      ->add_option("--request-timeout", options->request_timeout_s,
                   "seconds for a whole answer, waiting included; 0: no limit")
      ->capture_default_str()
      ->check(number_within(0.0, 1e6));
  serve
      ->add_option("--api-key-file", options->api_key_file,
                   "file with one API key a line; clients must send one as a bearer token")
      ->type_name("FILE")
      ->check(not_empty());
  CLI::Option* certificate =
      serve
          ->add_option("--tls-cert", options->tls_certificate,
                       "PEM file of a certificate and its chain; serves HTTPS")
          ->type_name("FILE")
          ->check(not_empty());
  CLI::Option* key =
      serve->add_option("--tls-key", options->tls_key, "PEM file of the certificate's key")
          ->type_name("FILE")
          ->check(not_empty());
  certificate->needs(key);
  key->needs(certificate);
  serve
      ->add_option("--cors-origin", options->cors_origins,
                   "origin of pages that may call from a browser; repeat for more; *: any")
      ->type_name("ORIGIN")
      ->check(not_empty())
      ->take_all();
}

void add_serve(CLI::App* app, ServeOptions* options, std::function<int()>* command) {
  CLI::App* serve = app->add_subcommand("serve", "Serve a model over an OpenAI-compatible API");
  add_model_options(serve, &options->model);
  serve->add_option("--host", options->host, "address to listen on")
      ->capture_default_str()
      ->check(not_empty());
  serve->add_option("--port", options->port, "port to listen on; 0: any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  serve
      ->add_option("--name", options->name,
                   "model name for clients and metrics; default: the one in its files")
      ->type_name("TEXT")
      ->check(not_empty());
  serve
      ->add_option("--max-sequences", options->model.max_sequences,
                   "requests generated at the same time; more wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  add_limits(serve, options);
  serve->callback([=] {
    check_model_options(options->model);
    *command = [=] {
      return tandem::app::serve_main(*options);
    };
  });
}

void add_run(CLI::App* app, RunOptions* options, std::function<int()>* command) {
  CLI::App* run = app->add_subcommand("run", "Answer one prompt and print the speed");
  options->model.max_sequences = 1;
  add_model_options(run, &options->model);
  run->add_option("--prompt", options->prompt, "what the user says")->required();
  run->add_option("--max-tokens", options->max_tokens, "most tokens of the answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  run->add_option("--temperature", options->temperature,
                  "0: always the likeliest token; default: the model file's")
      ->check(number_within(0.0, 100.0));
  run->callback([=] {
    check_model_options(options->model);
    *command = [=] {
      return tandem::app::run_main(*options);
    };
  });
}

void add_bench(CLI::App* app, BenchCommand* bench, std::function<int()>* command) {
  CLI::App* sub = app->add_subcommand(
      "bench", "Measure any OpenAI-compatible server with ShareGPT prompts, closed loop");
  auto& options = bench->options;
  sub->add_option("--url", options.url, "server, for example http://127.0.0.1:8080")->required();
  sub->add_option("--dataset", options.dataset, "ShareGPT V3 JSON file")
      ->required()
      ->type_name("FILE");
  sub->add_option("--prompts", options.prompts, "requests at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000));
  sub->add_option("--concurrency", options.concurrency, "requests on their way at any time")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  sub->add_option("--max-tokens", options.max_tokens, "most tokens of an answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  sub->add_option("--duration", options.duration_s, "seconds at most; what runs then is cancelled")
      ->capture_default_str()
      ->check(number_within(0.001, 1e7));
  sub->add_option("--output", bench->output, "JSON file to write; -: standard output")
      ->type_name("FILE")
      ->check(not_empty());
  sub->add_option("--model", options.model, "model to name; default: the server's first");
  sub->add_option("--api-key", options.api_key, "sent as a bearer token");
  sub->add_option("--temperature", options.temperature, "sampling temperature")
      ->capture_default_str()
      ->check(number_within(0.0, 100.0));
  sub->add_option("--extra-body", options.extra_body,
                  "members for every request's body, for example {\"response_format\":..}")
      ->type_name("JSON");
  sub->add_option("--timeout", options.timeout_s, "seconds for one request")
      ->capture_default_str()
      ->check(number_within(0.001, 1e7));
  sub->add_option("--pid", options.pid,
                  "server process whose peak memory is read; default: ask its /metrics")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  sub->callback([=] {
    *command = [=] {
      return tandem::app::bench_main(*bench);
    };
  });
}

void add_inspect(CLI::App* app, InspectOptions* options, std::function<int()>* command) {
  CLI::App* inspect = app->add_subcommand(
      "inspect", "Say what is in a model, whether it can be served and with how much memory");
  inspect->add_option("path", options->path, "GGUF file or Hugging Face directory")
      ->required()
      ->type_name("PATH");
  inspect->add_option("--draft", options->draft, "drafter to be served with it")
      ->type_name("PATH")
      ->check(not_empty());
  inspect
      ->add_option("--context", options->bounds.context, "most tokens of a prompt and its answer")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24));
  inspect
      ->add_option("--max-sequences", options->bounds.max_sequences,
                   "requests generated at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  add_parsed(inspect, "--kv-memory", &options->bounds.kv_memory_bytes, tandem::app::parse_size,
             "2GiB", "a size such as 512MiB or 2GiB", "most memory for the KV cache");
  inspect->add_flag("--json", options->as_json, "print one JSON object");
  inspect->callback([=] {
    *command = [=] {
      return tandem::app::inspect_main(*options);
    };
  });
}

void add_perf(CLI::App* app, PerfOptions* options, std::function<int()>* command) {
  CLI::App* perf = app->add_subcommand(
      "perf", "Measure a model's operations on a device, beside what its memory allows");
  perf->add_option("--model", options->model,
                   "GGUF file or Hugging Face directory; default: random weights of E4B's shapes")
      ->type_name("PATH")
      ->check(not_empty());
  perf->add_option("--threads", options->threads, "compute threads; 0: all cores of this process")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  add_device(perf, &options->device);
  perf->add_flag("--json", options->as_json, "print one JSON object");
  perf->callback([=] {
    *command = [=] {
      return tandem::app::perf_main(*options);
    };
  });
}

void add_convert(CLI::App* app, ConvertOptions* options, std::function<int()>* command) {
  CLI::App* convert = app->add_subcommand("convert", "Write a model in another form");
  convert->add_option("input", options->input, "GGUF file or Hugging Face directory")
      ->required()
      ->type_name("PATH");
  convert->add_option("output", options->output, "directory or file to make")
      ->required()
      ->type_name("PATH");
  convert
      ->add_option("--to", options->form,
                   "bf16 or fp8: a Hugging Face directory; q8_0: a GGUF file of an assistant")
      ->required()
      ->check(CLI::IsMember({"bf16", "fp8", "q8_0"}));
  convert->callback([=] {
    *command = [=] {
      return tandem::app::convert_main(*options);
    };
  });
}

/// A standard stream that is closed would be the next file or socket, and get what is printed.
void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  CLI::App app("Tandem serves Gemma 4 models with their MTP drafter.", "tandem");
  app.set_version_flag("--version", "tandem " TANDEM_VERSION);
  app.require_subcommand(1);

  ServeOptions serve;
  RunOptions run;
  BenchCommand bench;
  InspectOptions inspect;
  PerfOptions perf;
  ConvertOptions convert;
  std::function<int()> command;
  add_serve(&app, &serve, &command);
  add_run(&app, &run, &command);
  add_bench(&app, &bench, &command);
  add_inspect(&app, &inspect, &command);
  add_perf(&app, &perf, &command);
  add_convert(&app, &convert, &command);

  const auto is_first_argument = [argv](const CLI::App* command) {
    return command->check_name(argv[1]);
  };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_first_argument).empty()) {
    tandem::core::print(
        stderr, fmt::format("tandem: there is no command \"{}\"; tandem --help lists them\n",
                            tandem::core::printable(argv[1], 64)));
    return kUsageError;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return kUsageError;
    command = [] {  // help and version are asked for, not errors
      return 0;
    };
  }
  const int code = command();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return tandem::app::fail(
      tandem::core::resource_exhausted("cannot write to the standard output; is the disk full?"));
}
