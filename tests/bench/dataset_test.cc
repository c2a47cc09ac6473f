#include "tandem/bench/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace tandem::bench {
namespace {

using core::Code;
using testing::ElementsAre;
using testing::HasSubstr;

class Dataset : public testing::Test {
 protected:
  ~Dataset() override { std::filesystem::remove(path_); }

  core::Result<std::vector<std::string>> read(const std::string& content, std::size_t limit = 100) {
    std::ofstream(path_, std::ios::binary) << content;
    return read_sharegpt(path_, limit);
  }

  const std::string path_ =
      testing::TempDir() + "tandem_dataset_" + std::to_string(::getpid()) + ".json";
};

constexpr const char* kThree = R"([
  {"id":"1","conversations":[{"from":"human","value":"one [\"{\\"},{"from":"gpt","value":"x"}]},
  {"id":"2","conversations":[{"from":"system","value":"s"},{"from":"user","value":"two"}]},
  {"id":"3","conversations":[{"from":"human","value":"drei \u00fc\n"}]}
])";

TEST_F(Dataset, TakesTheFirstHumanTurnInFileOrder) {
  const auto prompts = read(kThree);
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  EXPECT_THAT(*prompts, ElementsAre("one [\"{\\", "two", "drei \xc3\xbc\n"));
}

TEST_F(Dataset, StopsAtTheLimitWithoutReadingOn) {
  const auto prompts = read(R"([{"conversations":[{"from":"human","value":"a"}]}, broken)", 1);
  ASSERT_TRUE(prompts.ok());
  EXPECT_THAT(*prompts, ElementsAre("a"));
}

TEST_F(Dataset, SkipsConversationsWithoutAHumanTurn) {
  const auto prompts = read(R"([1, "x", null, {}, [], {"conversations": 3},
    {"conversations": []}, {"conversations": [{"from":"gpt","value":"no"}]},
    {"conversations": [{"from":"human","value":" \n"},{"from":"human","value":"second"}]},
    {"conversations": [{"from":"human"}]},
    {"conversations": [5,{"from":"human","value":"yes"}]}])");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  EXPECT_THAT(*prompts, ElementsAre("yes"));
}

TEST_F(Dataset, ReadsThePromptsOfTheProject) {
  const auto prompts = read_sharegpt(TANDEM_SOURCE_DIR "/models/demo/sharegpt-bench.json", 5000);
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  EXPECT_GE(prompts->size(), 1000u);
  EXPECT_EQ(prompts->front(), "Describe the Demon Baphomet in 5e DnD");
}

TEST_F(Dataset, SaysWhatIsWrongWithAFile) {
  const auto expect_refused = [&](const std::string& content, Code code, const char* sentence) {
    const auto status = read(content).status();
    EXPECT_EQ(status.code(), code) << content;
    EXPECT_THAT(status.message(), HasSubstr(sentence));
    EXPECT_THAT(status.message(), HasSubstr(path_));
  };
  const std::string three = kThree;
  expect_refused("", Code::kDataLoss, "does not begin with a JSON array");
  expect_refused("{\"a\":1}", Code::kDataLoss, "does not begin with a JSON array");
  expect_refused("[]", Code::kInvalidArgument, "no conversation has a human turn");
  expect_refused("[", Code::kDataLoss, "truncated in entry 0");
  expect_refused(three.substr(0, three.find("two")), Code::kDataLoss, "truncated in entry 1");
  expect_refused(three.substr(0, three.size() - 1), Code::kDataLoss, "truncated in entry 3");
  expect_refused(R"(["unfinished \)", Code::kDataLoss, "truncated in entry 0");
  expect_refused(R"([{"a":}])", Code::kDataLoss, "entry 0 is not JSON");
  expect_refused("[}]", Code::kDataLoss, "entry 0 is not JSON");
  expect_refused("[{\"conversations\":[{\"from\":\"human\",\"value\":\"\xff\"}]}]", Code::kDataLoss,
                 "entry 0 is not JSON");
  EXPECT_EQ(read_sharegpt("/no/such/file", 1).status().code(), Code::kNotFound);
  EXPECT_EQ(read_sharegpt("/tmp", 1).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::bench
