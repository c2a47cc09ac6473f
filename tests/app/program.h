#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace tandem::app {

/// A run of the built `tandem` program, its output in files. Killed when this object goes.
class Program {
 public:
  /// `program`: another copy of it; empty: the built one.
  explicit Program(const std::vector<std::string>& arguments, std::string program = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// The exit code; -1 when it has not ended after `time`, or by a signal.
  int wait(std::chrono::seconds time);
  std::string output() const;  ///< standard output so far
  std::string errors() const;  ///< standard error so far

 private:
  std::string base_;
  pid_t pid_ = -1;
  bool is_running_ = false;
};

}  // namespace tandem::app
