// What a process may use of the machine's memory, from files like those of /proc and /sys.
#include "base/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace onefold {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class Memory : public testing::Test {
 protected:
  Memory() {
    std::string name = std::filesystem::temp_directory_path() / "onefold_root_XXXXXX";
    root_ = ::mkdtemp(name.data());
    write("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree:  1024 kB\nMemAvailable: 4194304 kB\n");
  }
  ~Memory() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& content) const {
    make_folders(std::filesystem::path(root_ + path).parent_path());
    write_file(root_ + path, content);
  }
  // A group of version 2.
  void group(const std::string& path, const std::string& limit, int64_t used) const {
    write("/sys/fs/cgroup" + path + "/memory.max", limit + "\n");
    write("/sys/fs/cgroup" + path + "/memory.current", std::to_string(used) + "\n");
  }
  int64_t total() const { return total_memory_bytes(root_) / kMiB; }
  int64_t available() const { return available_memory_bytes(root_) / kMiB; }

  std::string root_;
};

TEST_F(Memory, IsTheMachinesWithoutAGroup) {
  EXPECT_EQ(total(), 8192);
  EXPECT_EQ(available(), 4096);
}

TEST_F(Memory, IsNoMoreThanItsGroupAllows) {
  write("/proc/self/cgroup", "0::/job\n");
  group("/job", std::to_string(1024 * kMiB), 300 * kMiB);
  EXPECT_EQ(total(), 1024);
  EXPECT_EQ(available(), 724);
  // Cached files are given back when memory is needed.
  write("/sys/fs/cgroup/job/memory.stat", "anon 5\nfile 9\ninactive_file 104857600\n");
  EXPECT_EQ(available(), 824);
}

TEST_F(Memory, AGroupsParentsBindItToo) {
  write("/proc/self/cgroup", "0::/slice/job\n");
  group("/slice/job", "max", 10 * kMiB);
  group("/slice", std::to_string(2048 * kMiB), 1000 * kMiB);
  EXPECT_EQ(total(), 2048);
  EXPECT_EQ(available(), 1048);
}

TEST_F(Memory, AContainerThatSeesItsGroupAsTheRootIsLimited) {
  write("/proc/self/cgroup", "0::/docker/0123456789\n");
  group("", std::to_string(512 * kMiB), 100 * kMiB);
  EXPECT_EQ(total(), 512);
  EXPECT_EQ(available(), 412);
}

TEST_F(Memory, AGroupOfVersionOneLimitsToo) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(1024 * kMiB));
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(600 * kMiB));
  write("/sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 104857600\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(7000 * kMiB));
  EXPECT_EQ(total(), 1024);
  EXPECT_EQ(available(), 524);
}

TEST_F(Memory, AGroupWithoutALimitChangesNothing) {
  write("/proc/self/cgroup", "0::/job\n");
  group("/job", "max", 7000 * kMiB);
  EXPECT_EQ(total(), 8192);
  EXPECT_EQ(available(), 4096);
}

TEST_F(Memory, AGroupThatIsFullHasNothingLeft) {
  write("/proc/self/cgroup", "0::/job\n");
  group("/job", std::to_string(100 * kMiB), 100 * kMiB);
  EXPECT_EQ(available(), 0);
  EXPECT_GT(available_memory_bytes(root_), 0);  // 0 would say that it is not known
}

TEST(Threads, AreWhatTheEnvironmentSays) {
  const auto asked = [](const char* text) {
    ::setenv("OMP_NUM_THREADS", text, 1);
    const int threads = threads_by_environment();
    ::unsetenv("OMP_NUM_THREADS");
    return threads;
  };
  EXPECT_EQ(asked("3"), 3);
  EXPECT_EQ(asked("5,2"), 5);  // levels of OpenMP: the first counts
  for (const char* none : {"", "0", "-2", "many", "2 ", "99999999999"}) EXPECT_EQ(asked(none), 0);
  EXPECT_EQ(threads_by_environment(), 0);
}

}  // namespace
}  // namespace onefold
