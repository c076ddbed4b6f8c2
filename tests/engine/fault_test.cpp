// Training runs in which one rank fails before a random action of a random step: all others end, in
// time, with an error that names it.
#include <gtest/gtest.h>

#include <atomic>
#include <regex>
#include <thread>

#include "base/clock.h"
#include "comm/mpi_library.h"
#include "engine/faults.h"
#include "error_text.h"
#include "launch.h"

namespace onefold {
namespace {

using test::Fault;
using test::FaultCase;

constexpr double kTimeoutSeconds = 1;  // where a rank hangs
constexpr double kLimitSeconds = 10;   // within which all ranks must have ended

bool names_one(const std::string& text, const std::vector<std::string>& calls) {
  return std::any_of(calls.begin(), calls.end(),
                     [&](const std::string& call) { return contains(text, call); });
}

// How a case goes on threads: what each rank threw and when it ended.
class ThreadRun {
 public:
  explicit ThreadRun(const FaultCase& fault)
      : fault_(fault),
        errors(static_cast<size_t>(fault.ranks)),
        seconds(static_cast<size_t>(fault.ranks)) {
    const bool hangs = fault.plan.fault == Fault::hang;
    LocalGroup group(fault.ranks, {.timeout_seconds = hangs ? kTimeoutSeconds : 100});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < fault.ranks; ++rank)
      threads.emplace_back([&, rank] { run(rank, group); });
    for (std::thread& thread : threads) thread.join();
    for (double& ended : seconds) ended -= injected_;
  }

 private:
  struct Leaves {};  // no std::exception: nothing reports it

  void run(int rank, LocalGroup& group) {
    const auto r = static_cast<size_t>(rank);
    try {
      test::train_with_fault(fault_, group.join(rank), [&] { inject(); });
      errors[r] = "nothing";
    } catch (const Leaves&) {
      errors[r] = "left";
    } catch (const PeerError& error) {
      errors[r] = error.what();
    } catch (const std::exception& error) {
      errors[r] = std::string("own: ") + error.what();
    }
    seconds[r] = now_seconds();
    ++ended_;
  }

  void inject() {
    injected_ = now_seconds();
    if (fault_.plan.fault == Fault::raise) throw std::runtime_error("as the test asks");
    if (fault_.plan.fault == Fault::leave) throw Leaves();
    while (ended_ < fault_.ranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const FaultCase& fault_;
  std::atomic<int> ended_{0};
  double injected_ = 0;

 public:
  std::vector<std::string> errors;  // by rank
  std::vector<double> seconds;      // by rank: from the fault to its end
};

class FaultsOnThreads : public testing::TestWithParam<unsigned> {};

TEST_P(FaultsOnThreads, EndAllRanksWithTheName) {
  constexpr Fault kKinds[] = {Fault::raise, Fault::leave, Fault::hang, Fault::raise, Fault::leave};
  const FaultCase fault = test::draw_fault(GetParam(), kKinds);
  SCOPED_TRACE(fault.name());
  const ThreadRun run(fault);
  const int failed = fault.plan.rank;
  const std::string& error = run.errors[failed == 0 ? 1 : 0];
  for (int rank = 0; rank < fault.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_LT(run.seconds[r], kLimitSeconds) << "rank " << rank;
    if (rank != failed) {
      EXPECT_EQ(run.errors[r], error) << "rank " << rank;
    }
  }
  const std::string& own = run.errors[static_cast<size_t>(failed)];
  if (fault.plan.fault == Fault::raise) {
    EXPECT_EQ(error, fmt::format("rank {} failed: as the test asks", failed));
    EXPECT_EQ(own, "own: as the test asks");
    return;
  }
  const bool hangs = fault.plan.fault == Fault::hang;
  EXPECT_TRUE(
      contains(error, fmt::format("rank {} {}", failed, hangs ? "did not reach" : "left before")))
      << error;
  EXPECT_TRUE(names_one(error, test::calls_after(fault))) << error;
  EXPECT_EQ(own, hangs ? error : "left");  // one that resumes after the failure throws it too
}

INSTANTIATE_TEST_SUITE_P(Seeds, FaultsOnThreads, testing::Range(0u, 100u));

// Over meshes ranks wait for others that wait themselves, and who gives up first ends all. The one
// that hangs is named, by whoever that is.
void expect_named(const std::string& error, int rank) {
  const bool late = error.starts_with(fmt::format("rank {} did not reach", rank)),
             elsewhere = error.starts_with(fmt::format("rank {} is in no call, and all", rank));
  EXPECT_TRUE(late || elsewhere) << error;
  EXPECT_TRUE(contains(error, "did not reach") && contains(error, "on channel")) << error;
}

class FaultsOnMeshes : public testing::TestWithParam<unsigned> {};

TEST_P(FaultsOnMeshes, EndAllRanksWithAName) {
  if (GetParam() >= 24 && std::getenv("ONEFOLD_SLOW_TESTS") == nullptr)
    GTEST_SKIP() << "with ONEFOLD_SLOW_TESTS";
  constexpr Fault kKinds[] = {Fault::raise, Fault::leave, Fault::hang};
  const FaultCase fault = test::draw_mesh_fault(GetParam(), kKinds);
  SCOPED_TRACE(fault.name());
  const ThreadRun run(fault);
  const int failed = fault.plan.rank;
  const std::string& error = run.errors[failed == 0 ? 1 : 0];
  for (int rank = 0; rank < fault.ranks; ++rank) {
    EXPECT_LT(run.seconds[static_cast<size_t>(rank)], kLimitSeconds) << "rank " << rank;
    if (rank != failed) {
      EXPECT_EQ(run.errors[static_cast<size_t>(rank)], error) << "rank " << rank;
    }
  }
  const std::string& own = run.errors[static_cast<size_t>(failed)];
  switch (fault.plan.fault) {
    case Fault::raise:
      EXPECT_EQ(error, fmt::format("rank {} failed: as the test asks", failed));
      EXPECT_EQ(own, "own: as the test asks");
      break;
    case Fault::leave:
      EXPECT_TRUE(contains(error, fmt::format("rank {} left before", failed))) << error;
      EXPECT_EQ(own, "left");
      break;
    default:
      expect_named(error, failed);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FaultsOnMeshes, testing::Range(0u, 100u));

class HangsOnMeshes : public testing::TestWithParam<unsigned> {};

TEST_P(HangsOnMeshes, NameTheRankThatHangs) {
  constexpr Fault kKinds[] = {Fault::hang};
  const FaultCase fault = test::draw_mesh_fault(1000 + GetParam(), kKinds);
  SCOPED_TRACE(fault.name());
  const ThreadRun run(fault);
  for (const std::string& error : run.errors) expect_named(error, fault.plan.rank);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HangsOnMeshes, testing::Range(0u, 24u));

// What must be printed: by the launcher for a process that ends without a message.
std::regex expected_words(const FaultCase& fault) {
  const int rank = fault.plan.rank;
  switch (fault.plan.fault) {
    case Fault::raise:
      return std::regex(fmt::format("rank {} failed: as the test asks", rank));
    case Fault::hang:
      return std::regex(fmt::format("rank {} did not reach", rank));
    case Fault::exit_early:
      return std::regex(fmt::format("Process name: .*,{}\\]\\s+Exit code: +4", rank));
    default:
      return std::regex(fmt::format("process rank {} with PID .* signal 9", rank));
  }
}

// Each of the four faults comes three times; with ONEFOLD_SLOW_TESTS, 25 times.
TEST(FaultsUnderMpi, EndAllProcessesWithTheName) {
  if (mpi_library().api == nullptr) GTEST_SKIP() << "no MPI here";
  if (const std::string why = test::no_mpirun(ONEFOLD_SANITIZE); !why.empty()) GTEST_SKIP() << why;
  constexpr Fault kKinds[] = {Fault::raise, Fault::exit_early, Fault::kill, Fault::hang};
  const unsigned count = std::getenv("ONEFOLD_SLOW_TESTS") != nullptr ? 100 : 12;
  for (unsigned seed = 0; seed < count; ++seed) {
    const FaultCase fault = test::draw_fault(seed, kKinds);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, fault.name()));
    const test::Ended ended = test::mpirun(
        fault.ranks, fmt::format("{} --fault {},{},{},{} --model {} --stage {}{} --timeout 2",
                                 ONEFOLD_RANKS, test::fault_name(fault.plan.fault), fault.plan.rank,
                                 fault.plan.step, fault.plan.action, fault.model, fault.stage,
                                 fault.overlap ? "" : " --no-overlap"));
    EXPECT_NE(ended.code, 0) << ended.output;
    EXPECT_LT(ended.seconds, kLimitSeconds) << ended.output;
    EXPECT_TRUE(std::regex_search(ended.output, expected_words(fault))) << ended.output;
    if (fault.plan.fault == Fault::hang) {
      EXPECT_TRUE(names_one(ended.output, test::calls_after(fault))) << ended.output;
    }
  }
}

// Every process that gives up names the rank that hangs, and no other.
void expect_named_by_processes(const std::string& output, int rank) {
  const std::string said = "engine_ranks: ";
  size_t named = 0;
  for (size_t at = output.find(said); at != std::string::npos; at = output.find(said, at + 1)) {
    const std::string line =
        output.substr(at + said.size(), output.find('\n', at) - at - said.size());
    if (!contains(line, "did not reach")) continue;
    expect_named(line, rank);
    ++named;
  }
  EXPECT_GT(named, 0u) << output;
}

// One of each kind for each mesh of four ranks; with ONEFOLD_SLOW_TESTS, five times.
TEST(FaultsUnderMpi, OverMeshesEndAllProcessesWithTheName) {
  if (mpi_library().api == nullptr) GTEST_SKIP() << "no MPI here";
  if (const std::string why = test::no_mpirun(ONEFOLD_SANITIZE); !why.empty()) GTEST_SKIP() << why;
  constexpr Fault kKinds[] = {Fault::raise, Fault::exit_early, Fault::kill, Fault::hang};
  const unsigned rounds = std::getenv("ONEFOLD_SLOW_TESTS") != nullptr ? 5 : 1;
  for (const MeshAxes& axes :
       {MeshAxes{.tensor = 2, .pipeline = 2}, MeshAxes{.context = 2, .expert = 2}})
    for (unsigned round = 0; round < rounds; ++round)
      for (const Fault kind : kKinds) {
        FaultCase fault{.model = "mixtral-tiny", .ranks = 4, .stage = 2, .axes = axes};
        fault.plan = {kind, static_cast<int>((round + 1) % 4), 1, 0};
        fault.plan.action = (7 + 31 * round) % fault.program().actions.size();
        SCOPED_TRACE(fault.name());
        const test::Ended ended = test::mpirun(
            4,
            fmt::format("{} --fault {},{},1,{} --model mixtral-tiny --stage 2 --axes "
                        "{},{},{},{} --timeout 2",
                        ONEFOLD_RANKS, test::fault_name(kind), fault.plan.rank, fault.plan.action,
                        axes.tensor, axes.context, axes.expert, axes.pipeline));
        EXPECT_NE(ended.code, 0) << ended.output;
        EXPECT_LT(ended.seconds, kLimitSeconds) << ended.output;
        if (kind == Fault::hang)
          expect_named_by_processes(ended.output, fault.plan.rank);
        else
          EXPECT_TRUE(std::regex_search(ended.output, expected_words(fault))) << ended.output;
      }
}

}  // namespace
}  // namespace onefold
