#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace tandem::app {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, std::string program) {
  static int count = 0;
  base_ = testing::TempDir() + "tandem_program_" + std::to_string(::getpid()) + "_" +
          std::to_string(count++);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 1, (base_ + ".out").c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, (base_ + ".err").c_str(), flags, 0600);
  if (program.empty()) program = TANDEM_BINARY_DIR "/bin/tandem";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  is_running_ = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ) == 0;
  EXPECT_TRUE(is_running_) << program;
  posix_spawn_file_actions_destroy(&actions);
}

Program::~Program() {
  if (is_running_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove(base_ + ".out");
  std::filesystem::remove(base_ + ".err");
}

void Program::signal(int number) const {
  ::kill(pid_, number);
}

int Program::wait(std::chrono::seconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (is_running_ && std::chrono::steady_clock::now() < end) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      is_running_ = false;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

std::string Program::output() const {
  return read_file(base_ + ".out");
}
std::string Program::errors() const {
  return read_file(base_ + ".err");
}

}  // namespace tandem::app
