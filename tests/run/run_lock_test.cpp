// One run at a time in a folder, and no longer than it lives.
#include "run/run_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "data/scratch.h"
#include "error_text.h"

namespace onefold {
namespace {

TEST(RunLock, ASecondIsRefusedAndToldWhoHoldsTheFolder) {
  const ScratchFolder folder;
  std::optional<RunLock> first(std::in_place, folder.path(""));
  EXPECT_ERROR(RunLock(folder.path("")), "another run is writing to", folder.path(""),
               fmt::format("process {} on ", ::getpid()));
  first.reset();
  const RunLock second(folder.path(""));
}

TEST(RunLock, GoesWithAProcessThatIsKilled) {
  const ScratchFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder.path(""));
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_ERROR(RunLock(folder.path("")), fmt::format("process {} on ", child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const RunLock lock(folder.path(""));
}

// What a file says of a process that is gone, or never was, locks nothing.
TEST(RunLock, TheTextOnlyExplains) {
  const ScratchFolder folder;
  folder.write("run.lock", "process 1 on this host\n");
  { const RunLock lock(folder.path("")); }
  expect_in(read_file(folder.path("run.lock")), {fmt::format("process {} on ", ::getpid())});
}

}  // namespace
}  // namespace onefold
