// Ranks under mpirun (tests/comm/ranks/main.cpp): the same bits, and failures that end all of them.
#include "comm/mpi.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "comm/faults.h"
#include "comm/mpi_library.h"
#include "error_text.h"
#include "launch.h"

namespace onefold {
namespace {

using test::Ended;

Ended run(const std::string& arguments) { return test::launch("env " + arguments, 60); }

Ended mpirun(int ranks, const std::string& arguments) {
  return run(fmt::format("mpirun --oversubscribe -n {} {} {}", ranks, ONEFOLD_RANKS, arguments));
}

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (mpi_library().api == nullptr) GTEST_SKIP() << mpi_status();
    if (const std::string why = test::no_mpirun(ONEFOLD_SANITIZE); !why.empty())
      GTEST_SKIP() << why;
  }
};

class MpiRanks : public Mpi, public testing::WithParamInterface<int> {};

TEST_P(MpiRanks, EveryCollectiveHasTheBitsOfTheOracle) {
  const Ended ended = mpirun(GetParam(), "collectives");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

INSTANTIATE_TEST_SUITE_P(Counts, MpiRanks, testing::Values(1, 2, 3, 4, 8));

TEST_F(Mpi, GroupsOfEachAxisHaveTheBitsOfTheOracle) {
  for (const auto& [ranks, tensor] : {std::pair(2, 2), std::pair(4, 2), std::pair(6, 3)}) {
    const Ended ended = mpirun(ranks, fmt::format("groups {}", tensor));
    EXPECT_EQ(ended.code, 0) << ended.output;
  }
}

// MPI reports which ranks share the machine, with or without the launcher's variables.
TEST_F(Mpi, RanksOfThisMachineAreCountedWithoutTheLauncher) {
  const Ended ended = run(fmt::format(
      "mpirun --oversubscribe -n 3 env -u OMPI_COMM_WORLD_LOCAL_SIZE -u OMPI_COMM_WORLD_LOCAL_RANK "
      "{} collectives",
      ONEFOLD_RANKS));
  EXPECT_EQ(ended.code, 0) << ended.output;
}

TEST_F(Mpi, UncheckedCallsHaveTheSameBits) {
  const Ended ended = mpirun(3, "unchecked");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

TEST_F(Mpi, MessagesAreCutAndScratchIsReused) {
  for (const int ranks : {2, 3}) {
    const Ended ended = mpirun(ranks, "large");
    EXPECT_EQ(ended.code, 0) << ended.output;
  }
}

// 5 GiB of memory, for less than a minute: with the slow tests.
TEST_F(Mpi, SlabsMayHaveMoreThanTwoGigabytes) {
  if (std::getenv("ONEFOLD_SLOW_TESTS") == nullptr) GTEST_SKIP() << "ONEFOLD_SLOW_TESTS is not set";
  const Ended ended = mpirun(2, "huge");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

// Rank r's whole line.
std::string line_of(const Ended& ended, int rank) {
  const std::string mark = fmt::format("rank {} throws: ", rank);
  const size_t begin = ended.output.find(mark);
  if (begin == std::string::npos) return "";
  return ended.output.substr(begin + mark.size(),
                             ended.output.find('\n', begin) - begin - mark.size());
}

TEST_F(Mpi, RanksThatDisagreeAreNamedOnAllRanks) {
  const std::pair<const char*, const char*> cases[] = {
      {"words", "rank 1 calls barrier \"gather block.2\""},
      {"call", "rank 1 calls all_to_all \"gather block.3\" (4 bytes)"},
      {"size", "rank 1 calls all_gather \"gather block.3\" (8 bytes)"}};
  for (const auto& [how, words] : cases) {
    const Ended ended = mpirun(3, fmt::format("disagree {}", how));
    EXPECT_EQ(ended.code, 1) << ended.output;
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(contains(line_of(ended, r), words)) << ended.output;
      EXPECT_TRUE(
          contains(line_of(ended, r), "rank 0 calls all_gather \"gather block.3\" (4 bytes)"))
          << ended.output;
    }
  }
}

void expect_end(const Ended& ended, const std::vector<std::string>& words) {
  EXPECT_NE(ended.code, 0) << ended.output;
  EXPECT_NE(ended.code, 124) << "hung: " << ended.output;
  EXPECT_LT(ended.seconds, 10) << ended.output;
  for (const std::string& word : words) EXPECT_TRUE(contains(ended.output, word)) << ended.output;
}

TEST_F(Mpi, ARankThatHangsIsNamedWithItsLastCall) {
  const Ended ended = mpirun(3, "absent hang");
  expect_end(ended, {});
  EXPECT_TRUE(contains(line_of(ended, 0) + line_of(ended, 2),
                       "rank 1 did not reach barrier \"second\" on channel \"test\""))
      << ended.output;
  EXPECT_TRUE(contains(ended.output, "the last call there was barrier \"first\"")) << ended.output;
}

// Open MPI cancels no sends: the process prints the reason and ends, because it must not free
// memory that MPI uses.
TEST_F(Mpi, AMessageThatCannotBeCancelledIsNamed) {
  expect_end(mpirun(2, "unreceived"), {"rank 1 did not reach send to rank 1 \"activations\""});
}

TEST_F(Mpi, ARankThatLeavesIsNamed) {
  expect_end(mpirun(3, "absent leave"), {"rank 1 left before barrier \"second\""});
}

TEST_F(Mpi, LeavingAfterTheLastCallIsNoFailure) {
  for (int i = 0; i < 5; ++i) {
    const Ended ended = mpirun(4, "late");
    EXPECT_EQ(ended.code, 0) << ended.output;
  }
}

TEST_F(Mpi, ARankThatAbortsPrintsItsReasonAndEndsAll) {
  expect_end(mpirun(3, "absent abort"), {"rank 1 failed: the disk is full"});
}

// The program of the ranks replaces MPI_Abort by one that never returns.
TEST_F(Mpi, AnAbortThatTheLauncherDoesNotAnswerEndsAll) {
  expect_end(mpirun(3, "absent 'stuck abort'"), {"rank 1 failed: the disk is full"});
}

TEST_F(Mpi, AnExceptionEndsAll) {
  expect_end(mpirun(3, "absent throw"), {"rank 1 throws: an exception of rank 1"});
}

TEST_F(Mpi, AKilledProcessEndsAll) { expect_end(mpirun(3, "absent kill"), {"signal 9"}); }

// The first six of the ten faults; with the slow tests, each of the ten ten times.
TEST_F(Mpi, RandomFaultsEndAllRanks) {
  const unsigned count = std::getenv("ONEFOLD_SLOW_TESTS") != nullptr ? 100 : 6;
  for (unsigned seed = 0; seed < count; ++seed) {
    const int ranks = 2 + static_cast<int>(seed / 10) % 3;
    const auto plan = test::plan_fault(seed, ranks, test::kProcessFaults);
    SCOPED_TRACE(fmt::format("seed {}: {} of rank {} of {} at call {}", seed,
                             test::fault_name(plan.fault), plan.rank, ranks, plan.at));
    const Ended ended = mpirun(ranks, fmt::format("fault {}", seed));
    expect_end(ended, {});
    std::string words = "";
    if (plan.fault == test::Fault::hang) words = fmt::format("rank {} did not reach", plan.rank);
    if (plan.fault == test::Fault::leave) words = fmt::format("rank {} left before", plan.rank);
    if (plan.fault <= test::Fault::skipped_call) words = "rank 0 calls";
    EXPECT_TRUE(contains(ended.output, words)) << ended.output;
  }
}

// A launcher that the library does not support.
TEST_F(Mpi, ProcessesThatDoNotFindEachOtherAreRefused) {
  const Ended ended = run(fmt::format("PMI_SIZE=4 PMI_RANK=0 {} collectives", ONEFOLD_RANKS));
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_TRUE(contains(ended.output, "4 processes were started together")) << ended.output;
  EXPECT_TRUE(contains(ended.output, "mpirun")) << ended.output;
}

TEST(MpiStatus, GivesTheVersionOrWhatIsMissing) {
  const std::string status = mpi_status();
  if (mpi_library().api != nullptr)
    EXPECT_TRUE(contains(status, "MPI")) << status;
  else
    EXPECT_TRUE(contains(status, "nstall")) << status;
}

// The program without its plugin, as on a machine that was built without MPI.
TEST(MpiStatus, AMissingPluginIsNamedWithWhatToInstall) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("onefold_{}", getpid()) / "bin";
  fs::create_directories(folder);
  fs::copy_file(ONEFOLD_RANKS, folder / "ranks");
  const Ended ended = run(fmt::format("PMI_SIZE=2 {} collectives", (folder / "ranks").string()));
  fs::remove_all(folder.parent_path());
  EXPECT_EQ(ended.code, 1) << ended.output;
  for (const char* words : {"one of several MPI ranks", "libonefold_mpi.so", "Install"})
    EXPECT_TRUE(contains(ended.output, words)) << ended.output;
}

}  // namespace
}  // namespace onefold
