#include "tandem/core/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../formats/temporary_directory.h"

namespace tandem::core {
namespace {

/// A tree of /proc and /sys with one file.
class Tree {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = directory_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<int> quota() const { return cpu_quota(directory_.path()); }
  std::optional<std::uint64_t> memory() const { return memory_limit(directory_.path()); }

 private:
  testing::TemporaryDirectory directory_;
};

TEST(MemoryLimit, IsThatOfTheGroupIfItHasOne) {
  Tree tree;
  EXPECT_EQ(tree.memory(), std::nullopt);
  tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(tree.memory(), std::nullopt);
  tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(tree.memory(), 1073741824U);
  tree.write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(tree.memory(), 1073741824U);
  tree.write("/sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_EQ(tree.memory(), 2147483648U);
}

TEST(CpuQuota, IsThatOfTheGroup) {
  Tree service;
  service.write("/proc/self/cgroup", "0::/system.slice/tandem.service\n");
  service.write("/sys/fs/cgroup/system.slice/tandem.service/cpu.max", "450000 100000\n");
  EXPECT_EQ(service.quota(), 4);

  Tree container;
  container.write("/proc/self/cgroup", "0::/../../pod7/c1\n");
  container.write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(container.quota(), 1);

  Tree old;
  old.write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n");
  old.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  old.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(old.quota(), 2);
}

TEST(Limits, AreTheTightestOfTheGroupAndThoseAboveIt) {
  Tree tree;
  tree.write("/proc/self/cgroup", "0::/a.slice/b.slice/c.service\n");
  tree.write("/sys/fs/cgroup/a.slice/b.slice/c.service/cpu.max", "max 100000\n");
  tree.write("/sys/fs/cgroup/a.slice/b.slice/cpu.max", "400000 100000\n");
  tree.write("/sys/fs/cgroup/a.slice/cpu.max", "200000 100000\n");
  EXPECT_EQ(tree.quota(), 2);
  tree.write("/sys/fs/cgroup/a.slice/b.slice/c.service/memory.max", "8192\n");
  tree.write("/sys/fs/cgroup/a.slice/memory.max", "4096\n");
  EXPECT_EQ(tree.memory(), 4096U);
  tree.write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(tree.quota(), std::nullopt);
}

TEST(CpuQuota, IsNoneWhereTimeIsNotRationed) {
  EXPECT_EQ(Tree().quota(), std::nullopt);
  Tree tree;
  tree.write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(tree.quota(), std::nullopt);
  tree.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  tree.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(tree.quota(), std::nullopt);
  tree.write("/sys/fs/cgroup/cpu.max", "1e300 1\n");
  EXPECT_EQ(tree.quota(), 65536);
}

}  // namespace
}  // namespace tandem::core
