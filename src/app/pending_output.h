#pragma once

#include <string>

#include "tandem/core/status.h"

namespace tandem::app {

/// A file or directory that is written under a name of its own, "PATH.incomplete", and gets the
/// name PATH only when it is complete. What was written is removed unless it was committed.
class PendingOutput {
 public:
  /// kInvalidArgument if `path` or its incomplete name exists already. Creates nothing.
  static core::Result<PendingOutput> create(const std::string& path);

  PendingOutput(PendingOutput&& other) noexcept;
  PendingOutput& operator=(PendingOutput&&) = delete;
  ~PendingOutput();

  /// Where to write meanwhile.
  const std::string& path() const { return pending_; }
  /// Makes path() a directory.
  core::Status make_directory() const;
  /// Gives the output its name.
  core::Status commit();

 private:
  PendingOutput(std::string final, std::string pending);

  std::string final_;
  std::string pending_;  // empty: committed or moved from
};

}  // namespace tandem::app
