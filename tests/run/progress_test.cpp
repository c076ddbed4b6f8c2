#include "run/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "data/scratch.h"

namespace onefold {
namespace {

ProgressState state(int64_t step) {
  return {.step = step,
          .total_steps = 100,
          .loss = 2.5,
          .gradient_norm = 1.25,
          .learning_rate = 3e-4,
          .tokens_per_second = 1234,
          .gemm_fraction = 0.5,
          .memory_bytes = int64_t{1} << 30};
}

// What is written to standard error, while it is a file, or a terminal.
std::string in_a_file(const std::function<void()>& code) {
  ::testing::internal::CaptureStderr();
  code();
  return ::testing::internal::GetCapturedStderr();
}

std::string on_a_terminal(const std::function<void()>& code) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
  const int screen = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY), before = ::dup(STDERR_FILENO);
  ::dup2(screen, STDERR_FILENO);
  code();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(screen);  // the last one: reading ends where writing did
  std::string text;
  char piece[256];
  for (ssize_t n; (n = ::read(terminal, piece, sizeof(piece))) > 0;)
    text.append(piece, static_cast<size_t>(n));
  ::close(terminal);
  return text;
}

TEST(Progress, EveryFewStepsAndTheLastHaveALine) {
  const std::string text = in_a_file([] {
    Progress progress(10, false);
    for (const int64_t step : {1, 9, 10, 11, 20, 99, 100}) progress.show(state(step), 60);
  });
  EXPECT_EQ(text.find("step   9"), std::string::npos);
  expect_in(text, {"step  10/100  loss 2.5000  norm 1.25  lr 3.00e-04  1.23K tok/s  50% of GEMM  "
                   "1.00 GiB  ETA 1m00s\n",
                   "step  20/100", "step 100/100"});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(Progress, TheValidationLossIsShownOnceThereIsOne) {
  const std::string text = in_a_file([] {
    Progress progress(1, false);
    ProgressState s = state(1);
    progress.show(s, 1);
    s.step = 2;
    s.validation_loss = 0;
    progress.show(s, 1);
  });
  EXPECT_EQ(text.find("val"), text.rfind("val"));
  expect_in(text, {"loss 2.5000  val 0.0000  norm"});
}

TEST(Progress, QuietIsQuiet) {
  EXPECT_EQ(in_a_file([] {
              Progress progress(1, true);
              progress.show(state(1), 1);
              progress.note("note");
            }),
            "");
}

TEST(Progress, ATerminalsLiveLineIsGoneBeforeAnythingElse) {
  const std::string text = on_a_terminal([] {
    {
      Progress progress(10, false);
      progress.show(state(1), 60);
      progress.note("a note");
      progress.show(state(2), 60);  // too soon to be drawn again
    }
    std::fputs("an error", stderr);
  });
  ASSERT_NE(text, "no terminal");
  EXPECT_TRUE(text.starts_with("\r\x1b[Kstep   1/100")) << text;
  expect_in(text, {"ETA 1m00s\r\x1b[Ka note\r\n"});
  EXPECT_TRUE(text.ends_with("a note\r\nan error")) << text;
}

TEST(Progress, AnErrorDoesNotRunOnFromTheLiveLine) {
  const std::string text = on_a_terminal([] {
    try {
      Progress progress(10, false);
      progress.show(state(1), 60);
      throw std::runtime_error("diverged");
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
    }
  });
  EXPECT_TRUE(text.ends_with("\r\x1b[Kdiverged")) << text;
}

}  // namespace
}  // namespace onefold
