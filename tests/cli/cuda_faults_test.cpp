// Calls of CUDA that fail, wherever they come in a run: it ends by name, in time, and what it had
// saved goes on with the bits of a run that was not disturbed. Where a call may fail (memory that
// is only wished for), the run does not differ at all. On a card; skipped elsewhere.
#include <map>
#include <random>
#include <sstream>

#include "cli/support.h"
#include "device/device.h"
#include "error_text.h"

namespace onefold {
namespace {

constexpr int kFaultsEach = 10;

class CudaFaults : public Cli, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    const std::string problem = error_text([] { open_device("cuda", 1); });
    if (!problem.empty()) GTEST_SKIP() << problem;
    if (std::string(ONEFOLD_FAILING_CUDA).empty()) GTEST_SKIP() << "built without CUDA";
  }

  Outcome disturbed(const std::string& output, const std::string& variable,
                    const Arguments& flags = {"--quiet"}) const {
    Arguments arguments =
        train_arguments({"run.output=" + output, "run.device=cuda:0", "run.steps=6",
                         "run.save_every=2", "bf16={\"enabled\":true}"},
                        flags);
    return onefold(arguments, {.launcher = {"timeout", "60", "env",
                                            "LD_PRELOAD=" ONEFOLD_FAILING_CUDA, variable}});
  }
  bool as_reference(const std::string& output) const {
    return onefold({"diff", "reference", output}).code == 0;
  }

  std::map<std::string, int64_t> reference_calls() const {
    const Outcome run = disturbed("reference", "ONEFOLD_CALLS_FILE=" + folder_.path("calls"));
    EXPECT_EQ(run.code, 0) << run.err;
    std::map<std::string, int64_t> calls;
    std::istringstream in(read("calls"));
    std::string kind;
    for (int64_t count = 0; in >> kind >> count;)
      if (count > 0) calls[kind] = count;
    return calls;
  }
};

TEST_P(CudaFaults, EndByNameAndLoseNothing) {
  const std::map<std::string, int64_t> calls = reference_calls();
  ASSERT_GE(calls.size(), 5u);
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  for (int fault = 0; fault < kFaultsEach; ++fault) {
    auto kind = calls.begin();
    std::advance(kind, (GetParam() * kFaultsEach + fault) % static_cast<int>(calls.size()));
    const std::string what =
        fmt::format("{} {}", kind->first, 1 + random() % static_cast<uint64_t>(kind->second));
    SCOPED_TRACE(what);
    const std::string output = fmt::format("run{}", fault);
    const Outcome run = disturbed(output, "ONEFOLD_FAILING_CALL=" + what);
    if (run.code == 0) {  // it did without
      EXPECT_TRUE(as_reference(output));
      continue;
    }
    EXPECT_NE(run.code, 124) << "it did not end";
    EXPECT_LT(run.code, 128) << "a signal ended it";
    EXPECT_NE(run.err.find("onefold: "), std::string::npos) << run.err;
    EXPECT_TRUE(run.err.find("CUDA") != std::string::npos ||
                run.err.find("cuBLAS") != std::string::npos ||
                run.err.find("memory") != std::string::npos)
        << run.err;
    Outcome again = disturbed(output, "NOTHING=1", {"--quiet", "--resume", output});
    if (again.err.find("neither a checkpoint nor") != std::string::npos)  // none was whole yet
      again = disturbed(output, "NOTHING=1", {"--quiet", "--overwrite"});
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(as_reference(output));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaFaults, testing::Range(0, 10));

}  // namespace
}  // namespace onefold
