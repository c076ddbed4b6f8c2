#include "run/signals.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "engine/launch.h"
#include "run/support.h"
#include "run/training.h"

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

// A terminal that closes sends several, and a program that prints while it saves gets one a line.
TEST(StopSignals, AnyNumberOfHangUpsAskOnce) {
  const StopSignals signals;
  EXPECT_FALSE(signals.stop_wanted());
  for (const int number : {SIGHUP, SIGPIPE, SIGHUP, SIGPIPE, SIGTERM, SIGHUP}) {
    std::raise(number);
    EXPECT_TRUE(signals.stop_wanted());
  }
}

TEST(StopSignals, ASecondRequestAfterAHangUpEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        for (const int number : {SIGHUP, SIGINT, SIGTERM}) std::raise(number);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignals, UnderNohupAHangUpIsIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_FALSE(signals.stop_wanted());
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

TEST(StopSignals, RestoreTheHandlersThatWereThereBefore) {
  std::signal(SIGTERM, SIG_IGN);
  { const StopSignals signals; }
  EXPECT_EQ(std::signal(SIGTERM, SIG_DFL), SIG_IGN);
}

TEST(StopSignals, AreReceivedOnceInAProcess) {
  const StopSignals signals;
  std::raise(SIGINT);
  EXPECT_THROW(StopSignals(), InternalError);
  EXPECT_TRUE(signals.stop_wanted());  // the refused one has changed nothing
}

TEST(StopSignals, OneRequestIsTakenOnce) {
  StopSignals signals;
  std::raise(SIGUSR1);
  EXPECT_TRUE(signals.take_save_request());
  EXPECT_FALSE(signals.take_save_request());
}

// Two ranks as threads of this process, with the process's signals.
class SignalledRun : public RunTest {
 protected:
  static constexpr int kSteps = 3;

  // Calls after(training, rank) on each rank when its training has ended.
  template <class After>
  void run(StopSignals& signals, const After& after) const {
    const Config config =
        Config::from_json({{"model", "gpt2-tiny"},
                           {"train_batch_size", 4},
                           {"data", {{"train", folder_.path("book.txt")}, {"sequence_length", 8}}},
                           {"run", {{"steps", kSteps}, {"threads", 1}}}},
                          2);
    Ranks ranks(2, {});
    const RunPlan plan = plan_run(config, ranks);
    ranks.run([&](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      Training training(config, plan, std::move(communicator),
                        {.quiet = true, .signals = &signals});
      training.run();
      after(training, rank);
    });
  }
};

TEST_F(SignalledRun, ASignalBeforeTheRanksStartStopsAllOfThem) {
  StopSignals signals;
  std::raise(SIGINT);
  run(signals, [](Training& training, int rank) {
    EXPECT_TRUE(training.interrupted()) << rank;
    EXPECT_EQ(training.summary()["steps"], 1) << rank;
  });
}

// A rank that has ended takes no handler from one that still works: the signal would end the
// process in the middle of a write.
TEST_F(SignalledRun, HandlersStayUntilTheLastRankHasEnded) {
  StopSignals signals;
  std::atomic<bool> first_ended = false;
  run(signals, [&](Training& training, int rank) {
    EXPECT_EQ(training.summary()["steps"], kSteps) << rank;
    if (rank == 1) first_ended = true;
    while (!first_ended) std::this_thread::yield();
    if (rank == 0) std::raise(SIGTERM);
  });
  EXPECT_TRUE(signals.stop_wanted());
}

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalsTest, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& test) { return test.param == SIGINT ? "Int" : "Term"; });

}  // namespace
}  // namespace onefold
