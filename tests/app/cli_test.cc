#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "../formats/temporary_directory.h"
#include "program.h"
#include "served.h"
#include "tandem/net/http_client.h"

namespace tandem::app {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTiny = TANDEM_SOURCE_DIR "/tests/data/tiny/";
const std::vector<std::string> kPair = {"--model",  kTiny + "tiny-e-Q8_0.gguf",
                                        "--draft",  kTiny + "tiny-e-assistant-Q8_0.gguf",
                                        "--device", "reference"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<std::string> kServe =
    std::vector<std::string>{"serve", "--port", "0", "--kv-memory", "64MiB"} + kPair;

core::Result<net::ClientResponse> ask(const std::string& url, int max_tokens,
                                      double temperature = 0) {
  net::HttpRequest request{"POST", "/v1/chat/completions", {}, ""};
  request.headers.emplace_back("Content-Type", "application/json");
  request.body = json::serialize(
      json::object{{"messages", json::array{json::object{{"role", "user"}, {"content", "hi"}}}},
                   {"max_tokens", max_tokens},
                   {"ignore_eos", true},
                   {"seed", 1},
                   {"temperature", temperature}});
  return net::fetch(*net::parse_url(url), request, kPatience);
}

/// Waits until the server generates for a request.
void wait_until_running(const std::string& url) {
  const net::HttpRequest metrics{"GET", "/metrics", {}, ""};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    const auto page = net::fetch(*net::parse_url(url), metrics, kPatience);
    ASSERT_TRUE(page.ok()) << page.status().message();
    const std::size_t at = page->body.find("\nvllm:num_requests_running");
    if (at != std::string::npos) {
      const std::size_t line_end = page->body.find('\n', at + 1);
      if (page->body[line_end - 1] == '1') return;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  ADD_FAILURE() << "no request is running";
}

TEST(Cli, VersionAndHelpAreNotErrors) {
  Program version({"--version"});
  EXPECT_EQ(version.wait(kPatience), 0);
  EXPECT_THAT(version.output(), ::testing::StartsWith("tandem "));
  for (const char* command : {"serve", "run", "bench", "inspect", "perf"}) {
    Program help({command, "--help"});
    EXPECT_EQ(help.wait(kPatience), 0);
    EXPECT_THAT(help.output(), HasSubstr("Usage: tandem " + std::string(command)));
    EXPECT_THAT(help.output(), Not(HasSubstr("reference")));
  }
}

TEST(Cli, WrongUseEndsWithTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"fly"},
      {"serve"},
      {"serve", "--model", "x", "--no-such-option"},
      {"serve", "--model", "x", "--port", "70000"},
      {"serve", "--model", "x", "--kv-memory", "2XB"},
      {"serve", "--model", "x", "--draft-length", "9"},
      {"serve", "--model", "x", "--draft-length", "3"},
      {"serve", "--model", "x", "--max-sequences", "0"},
      {"serve", "--model", "x", "--host", ""},
      {"serve", "--model", "x", "--port", ""},
      {"serve", "--model", "x", "--name", ""},
      {"serve", "--model", "x", "--api-key-file", ""},
      {"serve", "--model", "x", "--tls-cert", "", "--tls-key", ""},
      {"serve", "--model", "x", "--max-queue-tokens", "-1"},
      {"inspect", "x", "--draft", ""},
      {"serve", "--model", "x", "--draft", ""},
      {"run", "--model", "x", "--prompt", "y", "--temperature", "nan"},
      {"run", "--model", "x", "--prompt", "y", "--max-tokens", "0"},
      {"bench", "--url", "u", "--dataset", "d", "--timeout", "nan"},
      {"bench", "--url", "u", "--dataset", "d", "--duration", "1e300"},
      {"serve", "--model", "x", "--device", "tpu"},
      {"run", "--model", "x"},
      {"run", "--model", "x", "--prompt", "y", "--temperature", "-1"},
      {"bench", "--url", "http://127.0.0.1:1"},
      {"bench", "--url", "u", "--dataset", "d", "--concurrency", "0"},
      {"inspect"}};
  for (const auto& arguments : wrong) {
    Program program(arguments);
    EXPECT_EQ(program.wait(kPatience), 2) << ::testing::PrintToString(arguments);
    EXPECT_NE(program.errors(), "");
    EXPECT_LT(program.errors().size(), 200U);
    EXPECT_EQ(program.output(), "");
  }
}

TEST(Cli, FailureEndsWithOneAndOneSentence) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> failing = {
      {{"serve", "--model", "/no/such.gguf"}, "/no/such.gguf: cannot open the file"},
      {{"run", "--model", "/etc/passwd", "--prompt", "x"}, "not a GGUF file"},
      {{"run", "--model", kTiny + "tiny-e-Q8_0.gguf", "--draft", kTiny + "tiny-e-Q8_0.gguf",
        "--device", "reference", "--prompt", "x"},
       "tiny-e-Q8_0.gguf"},
      {{"run", "--model", kTiny + "tiny-e-assistant-Q8_0.gguf", "--device", "reference", "--prompt",
        "x"},
       "drafter"},
      {{"inspect", "/no/such.gguf"}, "cannot open the file"},
      {{"serve", "--port", "0", "--model", kTiny + "tiny-e-Q8_0.gguf", "--kv-memory", "1KiB"},
       "--kv-memory is 1.0 KiB, but a model with 3 KV layers needs at least"},
      {{"bench", "--url", "http://127.0.0.1:1", "--dataset", "/no/such.json"},
       "cannot open the data set"},
      {{"bench", "--url", "u", "--dataset", "d", "--output", "/no/such/folder/x"},
       "cannot write the file"}};
  for (const auto& [arguments, sentence] : failing) {
    Program program(arguments);
    EXPECT_EQ(program.wait(kPatience), 1) << ::testing::PrintToString(arguments);
    EXPECT_THAT(program.errors(), HasSubstr(sentence));
    EXPECT_THAT(program.errors(), HasSubstr("tandem: "));
    EXPECT_THAT(program.errors(), Not(HasSubstr("listening")));
  }
}

TEST(Cli, AnUnknownCommandIsNamed) {
  Program program({"fly\x1b[2J", "--model", "x"});
  EXPECT_EQ(program.wait(kPatience), 2);
  EXPECT_EQ(program.errors(),
            "tandem: there is no command \"fly\\x1B[2J\"; tandem --help lists them\n");
}

TEST(Cli, TheUrlOfAnIpv6AddressHasBrackets) {
  Program server(kServe + std::vector<std::string>{"--host", "::1"});
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (server.errors().find("listening on") == std::string::npos &&
         std::chrono::steady_clock::now() < end) {
    if (server.wait(seconds(0)) >= 0) GTEST_SKIP() << "no IPv6 here: " << server.errors();
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_THAT(server.errors(), HasSubstr("listening on http://[::1]:"));
}

/// A copy of a tiny model without its template.
std::string without_template(const testing::TemporaryDirectory& directory) {
  directory.copy_from(kTiny + "tiny-e2");
  directory.remove("chat_template.jinja");
  return directory.path();
}

TEST(Cli, WithoutATemplateOnlyPlainCompletionsAreServed) {
  const testing::TemporaryDirectory directory;
  const std::string model = without_template(directory);
  Program inspect({"inspect", model});
  EXPECT_EQ(inspect.wait(kPatience), 0) << inspect.errors();
  EXPECT_THAT(inspect.output(), HasSubstr("can be served   only plain completions"));

  Program server({"serve", "--port", "0", "--device", "reference", "--model", model});
  const std::string url = wait_until_ready(server);
  EXPECT_THAT(server.errors(), HasSubstr("only plain completions"));
  const auto chat = ask(url, 4);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->status, 400);
  EXPECT_THAT(chat->body, HasSubstr("this model has no chat template"));
  net::HttpRequest plain{"POST", "/v1/completions", {}, R"({"prompt": "a", "max_tokens": 4})"};
  plain.headers.emplace_back("Content-Type", "application/json");
  const auto completion = net::fetch(*net::parse_url(url), plain, kPatience);
  ASSERT_TRUE(completion.ok()) << completion.status().message();
  EXPECT_EQ(completion->status, 200) << completion->body;
}

TEST(Cli, InspectFailsForWhatCannotBeServed) {
  const testing::TemporaryDirectory directory;
  directory.copy_from(kTiny + "tiny-e2");
  directory.write("tokenizer.json", "{}");
  for (const char* form : {"--json", "--max-sequences=1"}) {
    Program inspect({"inspect", form, directory.path()});
    EXPECT_EQ(inspect.wait(kPatience), 1);
    EXPECT_THAT(inspect.errors(), HasSubstr("there is no \"model\" object"));
    EXPECT_THAT(inspect.output(), HasSubstr("Hugging Face"));
  }
}

TEST(Cli, InspectSaysWhatIsInAFileAndWhetherItCanBeServed) {
  Program target({"inspect", kTiny + "tiny-e-Q8_0.gguf"});
  EXPECT_EQ(target.wait(kPatience), 0);
  for (const char* part : {"family          gemma4, \"Tiny E\"", "SSFssf", "Q8_0", "KV per token",
                           "can be served   yes", "tokenizer.ggml.tokens"}) {
    EXPECT_THAT(target.output(), HasSubstr(part));
  }
  Program drafter({"inspect", kTiny + "tiny-e-assistant-Q8_0.gguf"});
  EXPECT_EQ(drafter.wait(kPatience), 0);
  EXPECT_THAT(drafter.output(), HasSubstr("as the --draft of its target"));
  EXPECT_THAT(drafter.output(), HasSubstr("draft head      dense\n"));
  Program assistant({"inspect", kTiny + "tiny-e2-assistant"});
  EXPECT_EQ(assistant.wait(kPatience), 0);
  EXPECT_THAT(assistant.output(), HasSubstr("draft head      by centroids, the best 4 of 32\n"));
}

TEST(Cli, InspectPromisesTheMemoryOfServing) {
  Program inspect({"inspect", "--json", "--max-sequences", "4", "--context", "1000", "--draft",
                   kTiny + "tiny-e2-assistant", kTiny + "tiny-e2"});
  EXPECT_EQ(inspect.wait(kPatience), 0) << inspect.errors();
  const json::object report = json::parse(inspect.output()).as_object();
  EXPECT_EQ(report.at("kind"), "Hugging Face");
  EXPECT_EQ(report.at("can_be_served"), true);
  EXPECT_EQ(report.at("layers").as_array().size(), 4u);
  EXPECT_EQ(report.at("types").at("BF16").at("tensors").to_number<int>(), 67);
  // One sliding and one full layer own KV: 1 head of 32 and of 64, K and V, f16, in pages of 32.
  EXPECT_EQ(report.at("kv_bytes_per_token").at("sliding").to_number<int>(), 128);
  EXPECT_EQ(report.at("kv_bytes_per_token").at("full").to_number<int>(), 256);
  const json::value& need = report.at("to_be_served");
  EXPECT_EQ(need.at("kv_bytes").to_number<int>(),
            4 * (1024 * 256 + (64 + 32) * 128) + 512 * 128 + (64 << 20));
  EXPECT_GT(need.at("weights_bytes").to_number<int>(), 0);
  EXPECT_GT(need.at("workspace_bytes").to_number<int>(), 0);

  Program mismatch(
      {"inspect", "--draft", kTiny + "tiny-dense-assistant-Q8_0.gguf", kTiny + "tiny-e-Q8_0.gguf"});
  EXPECT_EQ(mismatch.wait(kPatience), 1);
  EXPECT_THAT(mismatch.errors(), HasSubstr("its target width is 64, the target's is 128"));
}

TEST(Cli, PerfMeasuresTheOperationsOfAModel) {
  Program perf({"perf", "--json", "--threads", "1", "--device", "cpu", "--model",
                kTiny + "tiny-e-Q8_0.gguf"});
  ASSERT_EQ(perf.wait(kPatience), 0) << perf.errors();
  const json::object table = json::parse(perf.output()).as_object();
  EXPECT_THAT(std::string(table.at("device").as_string()), ::testing::StartsWith("cpu ("));
  EXPECT_GT(table.at("read_gigabytes_per_s").to_number<double>(), 0);
  EXPECT_GT(table.at("peak_teraflops").to_number<double>(), 0);
  ASSERT_FALSE(table.at("rows").as_array().empty());
  for (const json::value& row : table.at("rows").as_array()) {
    EXPECT_GT(row.at("median_us").to_number<double>(), 0);
    EXPECT_GT(row.at("part_of_ceiling").to_number<double>(), 0);
    EXPECT_GE(row.at("spread").to_number<double>(), 0);
  }
  EXPECT_EQ(table.at("rows").at(0).at("operation"), "ffn");
  EXPECT_EQ(table.at("rows").at(0).at("rows"), 1);

  Program drafter({"perf", "--model", kTiny + "tiny-e-assistant-Q8_0.gguf", "--device", "cpu"});
  EXPECT_EQ(drafter.wait(kPatience), 1);
  EXPECT_THAT(drafter.errors(), HasSubstr("a drafter; give the model it drafts for"));
}

TEST(Cli, DirectoriesAndFilesMixInAPair) {
  const std::vector<std::string> rest = {"--device",     "reference", "--prompt",      "Hello",
                                         "--max-tokens", "12",        "--temperature", "0"};
  const auto answer = [&](const char* target, const char* draft) {
    Program run(
        std::vector<std::string>{"run", "--model", kTiny + target, "--draft", kTiny + draft} +
        rest);
    EXPECT_EQ(run.wait(kPatience), 0) << run.errors();
    const std::string text = run.output();
    return text.substr(0, text.find("\n\nprompt "));
  };
  const std::string expected = answer("tiny-e2", "tiny-e2-assistant");
  EXPECT_NE(expected, "");
  EXPECT_EQ(answer("tiny-e2", "tiny-e2-assistant-Q8_0.gguf"), expected);
  EXPECT_EQ(answer("tiny-e2-F16.gguf", "tiny-e2-assistant"), expected);
}

TEST(Cli, RunPrintsTheSameGreedyTextWithAndWithoutDrafts) {
  const std::vector<std::string> question = {"--prompt", "Hello",         "--max-tokens",
                                             "24",       "--temperature", "0"};
  Program with(std::vector<std::string>{"run"} + kPair + question);
  Program without({"run", "--model", kTiny + "tiny-e-Q8_0.gguf", "--device", "reference",
                   "--prompt", "Hello", "--max-tokens", "24", "--temperature", "0"});
  ASSERT_EQ(with.wait(kPatience), 0) << with.errors();
  ASSERT_EQ(without.wait(kPatience), 0) << without.errors();
  const auto text = [](const std::string& output) {
    return output.substr(0, output.find("\n\nprompt "));
  };
  EXPECT_EQ(text(with.output()), text(without.output()));
  EXPECT_THAT(with.output(), HasSubstr("output 24 tokens"));
  EXPECT_THAT(with.output(), HasSubstr("mean length"));
  EXPECT_THAT(without.output(), HasSubstr("no drafts"));
}

TEST(Cli, BenchMeasuresAServedModelAndTermStopsIt) {
  Program server(kServe);
  const std::string url = wait_until_ready(server);
  const std::string file = ::testing::TempDir() + "tandem_row_" + std::to_string(server.pid());
  Program bench({"bench", "--url", url, "--dataset",
                 TANDEM_SOURCE_DIR "/models/demo/sharegpt-bench.json", "--prompts", "6",
                 "--concurrency", "3", "--max-tokens", "8", "--output", file, "--pid",
                 std::to_string(server.pid())});
  EXPECT_EQ(bench.wait(kPatience), 0) << bench.errors();
  EXPECT_THAT(bench.output(), HasSubstr("completed / asked   6 / 6"));
  std::ifstream in(file);
  const json::value row = json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  std::filesystem::remove(file);
  EXPECT_EQ(row.at("completed"), 6);
  EXPECT_EQ(row.at("errors"), 0);
  EXPECT_GT(row.at("peak_memory_bytes").to_number<double>(), 1e6);
  EXPECT_GE(row.at("acceptance").at("mean_length").to_number<double>(), 1.0);

  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(kPatience), 0) << server.errors();
}

TEST(Cli, BenchFailsWhenRequestsFail) {
  Program server(kServe);
  const std::string url = wait_until_ready(server);
  Program bench({"bench", "--url", url, "--dataset",
                 TANDEM_SOURCE_DIR "/models/demo/sharegpt-bench.json", "--prompts", "3", "--model",
                 "another"});
  EXPECT_EQ(bench.wait(kPatience), 1);
  EXPECT_THAT(bench.output(), HasSubstr("completed / asked   0 / 3"));
  EXPECT_THAT(bench.errors(), HasSubstr("3 of 3 requests failed"));
}

TEST(Cli, AModelFileThatIsCutWhileInUseEndsWithASentence) {
  const std::string file = ::testing::TempDir() + "tandem_cut_" + std::to_string(::getpid());
  std::filesystem::copy_file(kTiny + "tiny-e-Q8_0.gguf", file,
                             std::filesystem::copy_options::overwrite_existing);
  Program server({"serve", "--model", file, "--port", "0"});
  const std::string url = wait_until_ready(server);
  std::filesystem::resize_file(file, 0);
  EXPECT_FALSE(ask(url, 4).ok());
  EXPECT_EQ(server.wait(kPatience), 1);
  EXPECT_THAT(server.errors(), HasSubstr("a model file became shorter while it was in use"));
  std::filesystem::remove(file);
}

TEST(Cli, BenchSaysWhatALowLimitOfOpenFilesNeeds) {
  const testing::TemporaryDirectory directory;
  const std::string command = "ulimit -n 64; " TANDEM_BINARY_DIR
                              "/bin/tandem bench --url u --dataset d --concurrency 100 2>" +
                              directory.file("errors");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_THAT(
      directory.read("errors"),
      HasSubstr("100 requests at a time need 132 open files, but this process may have 64"));
}

TEST(Cli, OutputThatCannotBeWrittenIsAnError) {
  const std::string command =
      TANDEM_BINARY_DIR "/bin/tandem inspect " + kTiny + "tiny-e-Q8_0.gguf >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_EQ(WEXITSTATUS(std::system(TANDEM_BINARY_DIR "/bin/tandem --help >/dev/full")), 1);
}

TEST(Cli, DraftsThatAreNeverRightAreToldOf) {
  Program server(kServe + std::vector<std::string>{"--draft-length", "1"});
  const std::string url = wait_until_ready(server);
  ASSERT_TRUE(ask(url, 1'000).ok());  // of the likeliest tokens, which the drafter knows
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(kPatience), 0);
  EXPECT_THAT(server.errors(), Not(HasSubstr("is --draft the drafter")));

  Program other(kServe + std::vector<std::string>{"--draft-length", "1"});
  ASSERT_TRUE(ask(wait_until_ready(other), 1'000, 1.0).ok());
  other.signal(SIGTERM);
  EXPECT_EQ(other.wait(kPatience), 0);
  EXPECT_THAT(other.errors(), HasSubstr("is --draft the drafter that was made for this model?"));
}

TEST(Cli, MemoryThatIsNotThereIsWarnedOf) {
  Program run({"run", "--model", kTiny + "tiny-e-Q8_0.gguf", "--prompt", "hi", "--max-tokens", "1",
               "--device", "cpu", "--kv-memory", "1000TiB"});
  run.wait(kPatience);  // if the system reserves that much, it answers
  EXPECT_THAT(run.errors(), HasSubstr("of memory will be taken"));
}

TEST(Cli, OptionsThatDoNotSuitTheDeviceAreWarnedOf) {
  Program run({"run", "--model", kTiny + "tiny-e-Q8_0.gguf", "--prompt", "hi", "--max-tokens", "1",
               "--device", "cpu", "--gpu-memory", "1GiB", "--threads",
               std::to_string(std::thread::hardware_concurrency() + 1)});
  EXPECT_EQ(run.wait(kPatience), 0);
  EXPECT_THAT(run.errors(), HasSubstr("cores that this process may use"));
  EXPECT_THAT(run.errors(), HasSubstr("--gpu-memory and --ple are for a GPU"));
}

TEST(Cli, AFullLogDiskEndsNothing) {
  Program server(kServe);
  const std::string bench =
      TANDEM_BINARY_DIR "/bin/tandem bench --prompts 2 --max-tokens 2 --url " +
      wait_until_ready(server) + " --dataset " TANDEM_SOURCE_DIR "/models/demo/sharegpt-bench.json";
  EXPECT_EQ(WEXITSTATUS(std::system((bench + " >/dev/null 2>/dev/full").c_str())), 0);
  EXPECT_EQ(WEXITSTATUS(std::system((bench + "x 2>/dev/full").c_str())), 1);
}

TEST(Cli, AClosedStreamIsNotTakenByAFileOrSocket) {
  std::string command = "exec " TANDEM_BINARY_DIR "/bin/tandem";
  for (const std::string& argument : kServe) command += " " + argument;
  Program server({"-c", command + " >&-"}, "/bin/sh");
  wait_until_ready(server);
  const std::string stream = "/proc/" + std::to_string(server.pid()) + "/fd/1";
  EXPECT_EQ(std::filesystem::read_symlink(stream), "/dev/null");
}

TEST(Cli, TheModelHasTheNameThatTheOperatorGivesItOrOneWithoutSpaces) {
  const auto name_with = [](const std::vector<std::string>& options) {
    Program server(kServe + options);
    const net::HttpRequest models{"GET", "/v1/models", {}, ""};
    const auto list = net::fetch(*net::parse_url(wait_until_ready(server)), models, kPatience);
    EXPECT_TRUE(list.ok()) << list.status().message();
    return list.ok() ? json::parse(list->body).at("data").at(0).at("id") : json::value();
  };
  EXPECT_EQ(name_with({"--name", "gpt-4o"}), "gpt-4o");
  EXPECT_EQ(name_with({}), "Tiny-E");
}

TEST(Cli, TermLetsRunningRequestsFinishAndASecondOneDoesNot) {
  Program server(kServe);
  const std::string url = wait_until_ready(server);
  core::Result<net::ClientResponse> answer = core::internal_error("not asked");
  std::thread client([&] { answer = ask(url, 1'500); });
  wait_until_running(url);
  server.signal(SIGTERM);
  client.join();
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(server.wait(kPatience), 0) << server.errors();

  Program other(kServe);
  const std::string other_url = wait_until_ready(other);
  std::thread other_client([&] { answer = ask(other_url, 60'000); });
  wait_until_running(other_url);
  other.signal(SIGINT);
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(other.wait(seconds(0)), -1);  // still draining
  other.signal(SIGINT);
  EXPECT_EQ(other.wait(seconds(5)), 1);
  other_client.join();
}

}  // namespace
}  // namespace tandem::app
