#include "comm/binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <functional>
#include <set>
#include <thread>

#include "base/thread_pool.h"

namespace onefold {
namespace {

std::set<int> cpus_of_this_thread() {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof(mask), &mask);
  std::set<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.insert(cpu);
  return cpus;
}

// On a thread of its own, so that the thread of the test is not bound.
void on_a_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(Binding, RanksShareOutEveryCoreOnce) {
  const std::set<int> all = cpus_of_this_thread();
  for (int ranks = 1; ranks <= available_cores(); ++ranks) {
    std::multiset<int> shared_out;
    for (int rank = 0; rank < ranks; ++rank) {
      on_a_thread([&] {
        const int cores = bind_rank(rank, ranks);
        const std::set<int> own = cpus_of_this_thread();
        EXPECT_EQ(static_cast<int>(own.size()), cores);
        shared_out.insert(own.begin(), own.end());
      });
    }
    EXPECT_EQ(shared_out, std::multiset<int>(all.begin(), all.end())) << ranks << " ranks";
  }
  EXPECT_EQ(cpus_of_this_thread(), all);
}

TEST(Binding, ThreadsStartedLaterInheritTheShare) {
  on_a_thread([] {
    bind_rank(0, available_cores());
    const std::set<int> own = cpus_of_this_thread();
    on_a_thread([&] { EXPECT_EQ(cpus_of_this_thread(), own); });
    EXPECT_EQ(available_cores(), 1);
  });
}

TEST(Binding, MoreRanksThanCoresAreNotBound) {
  const std::set<int> all = cpus_of_this_thread();
  on_a_thread([&] {
    EXPECT_EQ(bind_rank(1, available_cores() + 1), 1);
    EXPECT_EQ(cpus_of_this_thread(), all);
  });
}

}  // namespace
}  // namespace onefold
