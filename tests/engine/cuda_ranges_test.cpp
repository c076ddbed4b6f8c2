// A profiler's view of a step on a card: a range for each action (tests/engine/profiler).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "engine/support.h"
#include "error_text.h"

namespace onefold {
namespace {

void train_under_a_profiler(const std::string& file) {
  setenv("NVTX_INJECTION64_PATH", ONEFOLD_RANGE_RECORDER, 1);
  setenv("ONEFOLD_RANGES", file.c_str(), 1);
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  spec.vocab_size = 101;
  Engine engine(spec, {.device = "cuda", .threads = 2, .micro_batch = 1, .sequence = 32});
  test::train(engine, 1);
  std::exit(0);
}

TEST(CudaRanges, AProfilerSeesEachAction) {
  const std::string problem = error_text([] { open_device("cuda", 1); });
  if (!problem.empty()) GTEST_SKIP() << problem;
  if (std::string(ONEFOLD_RANGE_RECORDER).empty()) GTEST_SKIP() << "built without NVTX's headers";
  ASSERT_TRUE(std::ifstream(ONEFOLD_RANGE_RECORDER).good())
      << ONEFOLD_RANGE_RECORDER << " is not there: it is built, and packed, with this program";
  const std::string file = testing::TempDir() + "onefold_ranges";
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // NVTX looks for profilers once
  EXPECT_EXIT(train_under_a_profiler(file), testing::ExitedWithCode(0), "");
  std::set<std::string> names;
  int open = 0;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    open += line == "." ? -1 : 1;
    EXPECT_GE(open, 0);
    names.insert(line);
  }
  EXPECT_EQ(open, 0);
  for (const char* name : {"forward embedding, micro 0", "backward block.0.attention, micro 0",
                           "squares block.0.mlp", "clip", "step head"})
    EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace onefold
