#include "run/signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace onefold {
namespace {

class StopSignalsTest : public ::testing::TestWithParam<int> {};

TEST_P(StopSignalsTest, OneAsksToStop) {
  const StopSignals signals;
  EXPECT_FALSE(signals.stop_wanted());
  std::raise(GetParam());
  EXPECT_TRUE(signals.stop_wanted());
}

TEST_P(StopSignalsTest, ASecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        std::raise(SIGINT);
        std::raise(GetParam());
      },
      ::testing::KilledBySignal(GetParam()), "");
}

TEST_P(StopSignalsTest, AfterwardsASignalEndsTheProcessAgain) {
  EXPECT_EXIT(
      {
        { const StopSignals signals; }
        std::raise(GetParam());
      },
      ::testing::KilledBySignal(GetParam()), "");
}

TEST_P(StopSignalsTest, ANewWatchForgetsTheOldSignal) {
  {
    const StopSignals signals;
    std::raise(GetParam());
  }
  EXPECT_FALSE(StopSignals().stop_wanted());
}

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalsTest, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& test) { return test.param == SIGINT ? "Int" : "Term"; });

}  // namespace
}  // namespace onefold
