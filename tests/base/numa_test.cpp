// Threads and memory on the nodes of a machine: on described ones, as those that tests run on
// mostly have one.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

namespace onefold {
namespace {

std::vector<int> numbers(int begin, int end) {
  std::vector<int> all;
  for (int i = begin; i < end; ++i) all.push_back(i);
  return all;
}

TEST(Numa, NodesHaveTheirCores) {
  const std::vector<NumaNode> nodes = described_numa_nodes("node:2 core:4 pu:2");
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].number, 0);
  EXPECT_EQ(nodes[1].number, 1);
  EXPECT_EQ(nodes[0].cpus, numbers(0, 8));
  EXPECT_EQ(nodes[1].cpus, numbers(8, 16));
}

TEST(Numa, AShareHasTheNodesOfItsCores) {
  const std::vector<NumaNode> machine = described_numa_nodes("node:4 core:4 pu:1");
  const std::vector<NumaNode> half = numa_nodes_of(machine, numbers(6, 12));
  ASSERT_EQ(half.size(), 2u);
  EXPECT_EQ(half[0].number, 1);
  EXPECT_EQ(half[0].cpus, numbers(6, 8));
  EXPECT_EQ(half[1].number, 2);
  EXPECT_EQ(half[1].cpus, numbers(8, 12));
  EXPECT_TRUE(numa_nodes_of(machine, numbers(4, 8)).empty());  // one node
  EXPECT_TRUE(numa_nodes_of(described_numa_nodes("core:4 pu:2"), numbers(0, 8)).empty());
}

TEST(Numa, TheEnvironmentSwitchesItOff) {
  const std::vector<NumaNode> machine = described_numa_nodes("node:2 core:2 pu:1");
  EXPECT_EQ(numa_nodes_of(machine, numbers(0, 4)).size(), 2u);
  setenv("ONEFOLD_NUMA", "off", 1);
  EXPECT_TRUE(numa_nodes_of(machine, numbers(0, 4)).empty());
  unsetenv("ONEFOLD_NUMA");
}

TEST(Numa, ThreadsAreDividedAsCoresAre) {
  const std::vector<NumaNode> nodes = {{0, numbers(0, 6)}, {1, numbers(6, 8)}};
  const auto count = [&](int threads) {
    std::vector<int> of_node(2);
    for (int thread = 0; thread < threads; ++thread)
      ++of_node[node_of_thread(nodes, thread, threads)];
    return of_node;
  };
  EXPECT_EQ(count(8), (std::vector{6, 2}));
  EXPECT_EQ(count(4), (std::vector{3, 1}));
  EXPECT_EQ(count(1), (std::vector{1, 0}));
  EXPECT_EQ(count(16), (std::vector{12, 4}));
}

std::set<int> cores_of_this_thread() {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof(mask), &mask);
  std::set<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cores.insert(cpu);
  return cores;
}

// Two nodes of one core each are made of the first two cores.
TEST(Numa, WorkersAreBoundToTheirNodesAndTheCallerIsNot) {
  const std::set<int> all = cores_of_this_thread();
  if (all.size() < 2) GTEST_SKIP() << "one core";
  const int low = *all.begin(), high = *std::next(all.begin());
  ThreadPool pool(4, {{0, {low}}, {1, {high}}});
  std::vector<std::set<int>> of_thread(4);
  // Every thread must take a chunk: each waits for the others.
  std::atomic<int> here{0};
  pool.run(4, [&](int64_t, int thread) {
    of_thread[static_cast<size_t>(thread)] = cores_of_this_thread();
    ++here;
    while (here < 4) std::this_thread::yield();
  });
  EXPECT_EQ(of_thread[0], all);
  EXPECT_EQ(of_thread[1], std::set{low});
  EXPECT_EQ(of_thread[2], std::set{high});
  EXPECT_EQ(of_thread[3], std::set{high});
  EXPECT_EQ(cores_of_this_thread(), all);
}

TEST(Numa, PagesAreInterleaved) {
  constexpr size_t kBytes = 1 << 20;
  void* const block =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  const std::vector<NumaNode> nodes = {{0, {0}}};
  interleave_pages(block, kBytes, nodes);
  int policy = -1;
  const long done =
      syscall(SYS_get_mempolicy, &policy, nullptr, 0ul, block, static_cast<unsigned>(MPOL_F_ADDR));
  ::munmap(block, kBytes);
  if (done != 0) GTEST_SKIP() << "this system has no memory policies";
  EXPECT_EQ(policy, MPOL_INTERLEAVE);
}

}  // namespace
}  // namespace onefold
