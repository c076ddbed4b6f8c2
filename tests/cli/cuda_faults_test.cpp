// Calls of CUDA that fail, wherever they come in a run, and processes that are killed there: a run
// ends by name, in time, and what it had saved goes on with the bits of a run that was not
// disturbed. Where a call may fail (memory that is only wished for), the run does not differ at
// all. On a card; skipped elsewhere. Calls of NCCL that fail are in engine/cuda_ranks_test.cpp and
// comm/nccl_test.cpp: several processes would need several cards.
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "cli/support.h"
#include "device/device.h"
#include "error_text.h"

namespace onefold {
namespace {

constexpr int kFaults = 84, kKills = 16;
constexpr size_t kAtATime = 8;  // most of a short run is starting, which takes a core

class CudaFaults : public Cli {
 protected:
  void SetUp() override {
    if (!std::getenv("ONEFOLD_SLOW_TESTS")) GTEST_SKIP() << "ctest -L slow runs it";
    const std::string problem = error_text([] { open_device("cuda", 1); });
    if (!problem.empty()) GTEST_SKIP() << problem;
    if (std::string(ONEFOLD_FAILING_CUDA).empty()) GTEST_SKIP() << "built without CUDA";
  }

  // A run with this variable for the library that lets calls fail.
  std::unique_ptr<Process> started(const std::string& output, const std::string& variable,
                                   const Arguments& flags = {"--quiet"}) const {
    const Arguments arguments =
        train_arguments({"run.output=" + output, "run.device=cuda:0", "run.steps=6",
                         "run.save_every=2", "bf16={\"enabled\":true}"},
                        flags);
    return std::make_unique<Process>(
        folder_.path(""), arguments,
        Environment{.launcher = {"timeout", "-k", "5", "40", "env",
                                 "LD_PRELOAD=" ONEFOLD_FAILING_CUDA, variable}});
  }
  bool as_reference(const std::string& output) const {
    return onefold({"diff", "reference", output}).code == 0;
  }

  // How often a run that is not disturbed calls what can fail, by kind.
  std::map<std::string, int64_t> reference_calls() const {
    const Outcome run = started("reference", "ONEFOLD_CALLS_FILE=" + folder_.path("calls"))->wait();
    EXPECT_EQ(run.code, 0) << run.err;
    std::map<std::string, int64_t> calls;
    std::istringstream in(read("calls"));
    std::string kind;
    for (int64_t count = 0; in >> kind >> count;)
      if (count > 0) calls[kind] = count;
    return calls;
  }

  // Goes on from what a run has left, or begins again where it had saved nothing.
  void check_resumed(const std::string& output) const {
    Outcome again = started(output, "NOTHING=1", {"--quiet", "--resume", output})->wait();
    if (again.err.find("neither a checkpoint nor") != std::string::npos)
      again = started(output, "NOTHING=1", {"--quiet", "--overwrite"})->wait();
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(as_reference(output));
  }
};

void check_failure(const Outcome& run) {
  EXPECT_NE(run.code, 124) << "it did not end";
  EXPECT_LT(run.code, 128) << "a signal ended it";
  EXPECT_NE(run.err.find("onefold: "), std::string::npos) << run.err;
  EXPECT_TRUE(
      run.err.find("CUDA") != std::string::npos || run.err.find("cuBLAS") != std::string::npos ||
      run.err.find("cuDNN") != std::string::npos || run.err.find("memory") != std::string::npos)
      << run.err;
}

TEST_F(CudaFaults, EndByNameAndLoseNothing) {
  const std::map<std::string, int64_t> calls = reference_calls();
  ASSERT_GE(calls.size(), 5u);
  struct Disturbed {
    std::string what, output;
    bool killed;
    std::unique_ptr<Process> process;
  };
  std::mt19937 random(1);
  std::deque<Disturbed> under_way;
  std::map<std::string, int> resumed;  // of each kind: starting again takes as long as a run
  int ended = 0, unharmed = 0;
  const auto end_first = [&] {
    Disturbed& first = under_way.front();
    SCOPED_TRACE(first.what);
    const Outcome run = first.process->wait();
    ++ended;
    if (run.code == 0) {  // it did without, or had it behind it
      ++unharmed;
      EXPECT_TRUE(as_reference(first.output));
    } else {
      if (first.killed)
        EXPECT_EQ(run.code, 137) << run.err;
      else
        check_failure(run);
      if (resumed[first.what.substr(0, first.what.find(' '))]++ < 2) check_resumed(first.output);
    }
    under_way.pop_front();
  };
  for (int fault = 0; fault < kFaults + kKills; ++fault) {
    if (under_way.size() == kAtATime) end_first();
    const bool killed = fault >= kFaults;
    auto kind = calls.begin();
    std::advance(kind, fault % static_cast<int>(calls.size()));
    const std::string what =
        fmt::format("{} {}", kind->first, 1 + random() % static_cast<uint64_t>(kind->second));
    const std::string output = fmt::format("run{}", fault);
    under_way.push_back(
        {(killed ? "kill at " : "") + what, output, killed,
         started(output, (killed ? "ONEFOLD_KILLED_AT=" : "ONEFOLD_FAILING_CALL=") + what)});
  }
  while (!under_way.empty()) end_first();
  EXPECT_EQ(ended, kFaults + kKills);
  EXPECT_LT(unharmed, kFaults / 2);
}

}  // namespace
}  // namespace onefold
