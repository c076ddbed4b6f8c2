#include "engine/launch.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace onefold {
namespace {

// The ranks that have started wait for one that never will. Threads need address space for their
// stacks.
TEST(Ranks, OneThatCannotStartEndsThoseThatHave) {
#ifdef ONEFOLD_SANITIZED
  GTEST_SKIP() << "a sanitizer needs the address space that this test takes away";
#endif
  EXPECT_EXIT(
      {
        rlim_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        rlimit limit{};
        ::getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{40} << 20);
        ::setrlimit(RLIMIT_AS, &limit);
        try {
          Ranks ranks(32, {});
          ranks.run([](const std::shared_ptr<Communicator>& communicator) {
            communicator->open("all", nullptr)->barrier("all are there");
          });
        } catch (const UserError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::_Exit(7);
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(7), "cannot start another thread");
}

}  // namespace
}  // namespace onefold
