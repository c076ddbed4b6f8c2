#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "base/error.h"

namespace onefold {
namespace {

TEST(ThreadPool, RunsEveryChunkOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t chunks : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(chunks));
      std::atomic<bool> thread_in_range = true;
      pool.run(chunks, [&](int64_t chunk, int thread) {
        ++runs[static_cast<size_t>(chunk)];
        if (thread < 0 || thread >= threads) thread_in_range = false;
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_TRUE(thread_in_range);
    }
  }
}

TEST(ThreadPool, MayBeUsedAgainAndAgain) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum = 0;
  for (int i = 0; i < 2000; ++i) pool.run(7, [&](int64_t chunk, int) { sum += chunk; });
  EXPECT_EQ(sum, 2000 * 21);
}

// run() does not wait for threads that took no chunk: they may still look for one when the next
// call has begun.
TEST(ThreadPool, ThreadsThatComeLateDisturbNoLaterCall) {
  ThreadPool pool(8);
  for (int64_t i = 0; i < 5000; ++i) {
    const int64_t chunks = 1 + i % 3;
    std::vector<int64_t> results(static_cast<size_t>(chunks), -1);
    pool.run(chunks, [&, i](int64_t chunk, int) { results[static_cast<size_t>(chunk)] = i; });
    for (const int64_t result : results) ASSERT_EQ(result, i);
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(3);
  std::atomic<int> runs = 0;
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.run(50, [&](int64_t, int) { ++runs; });
  }
  EXPECT_EQ(runs, 150);
}

TEST(ThreadPool, RethrowsAnExceptionAndStaysUsable) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int attempt = 0; attempt < 20; ++attempt) {
      EXPECT_THROW(pool.run(100,
                            [&](int64_t chunk, int) {
                              if (chunk == 37) throw std::runtime_error("chunk 37");
                            }),
                   std::runtime_error);
      std::atomic<int> runs = 0;
      pool.run(100, [&](int64_t, int) { ++runs; });
      EXPECT_EQ(runs, 100);
    }
  }
}

TEST(ThreadPool, AnExceptionStopsTheRemainingChunks) {
  ThreadPool pool(1);
  int runs = 0;
  EXPECT_THROW(pool.run(1000,
                        [&](int64_t, int) {
                          if (++runs == 3) throw std::runtime_error("enough");
                        }),
               std::runtime_error);
  EXPECT_EQ(runs, 3);
}

TEST(ThreadPool, ZeroThreadsMeansOneForEachCore) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.threads(), available_cores());
  EXPECT_GE(available_cores(), 1);
  EXPECT_THROW(ThreadPool(-1), InternalError);
  EXPECT_THROW(ThreadPool(100000), UserError);
}

volatile std::sig_atomic_t handled = 0;
extern "C" void on_test_signal(int) { handled = handled + 1; }

// Kernels may use the stack pointer for other things: a handler must not run on top of one.
TEST(ThreadPool, SignalsWaitUntilTheWorkIsDone) {
  const auto before = std::signal(SIGUSR1, on_test_signal);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    handled = 0;
    std::atomic<int> seen_inside = 0;
    pool.run(4, [&](int64_t, int) {
      std::raise(SIGUSR1);  // to this very thread
      ::kill(::getpid(), SIGUSR1);
      seen_inside += handled;
    });
    EXPECT_EQ(seen_inside, 0);
    if (threads == 1) {
      EXPECT_GT(handled, 0);  // the caller's own are delivered on the way out
    }
  }
  std::signal(SIGUSR1, before);
}

rlim_t address_space_bytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// Threads need address space for their stacks.
TEST(ThreadPool, ASystemWithoutAnotherThreadIsAnError) {
  EXPECT_EXIT(
      {
        rlimit limit{};
        ::getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = address_space_bytes() + (rlim_t{24} << 20);
        ::setrlimit(RLIMIT_AS, &limit);
        try {
          const ThreadPool pool(32);
        } catch (const UserError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::_Exit(7);
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(7), "cannot start another thread: .*ulimit -u");
}

}  // namespace
}  // namespace onefold
