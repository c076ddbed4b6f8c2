#include "device/cuda_architectures.h"

#include <gtest/gtest.h>

namespace onefold {
namespace {

bool runs(const char* architectures, int major, int minor) {
  return problem_of_architecture(architectures, major, minor).empty();
}

TEST(CudaArchitectures, MachineCodeRunsWithinItsGenerationAndPtxOnWhatCameLater) {
  EXPECT_TRUE(runs("80-real", 8, 0));
  EXPECT_TRUE(runs("80-real", 8, 9));
  EXPECT_FALSE(runs("80-real", 9, 0));
  EXPECT_FALSE(runs("89-real", 8, 6));
  EXPECT_TRUE(runs("80-virtual", 12, 0));
  EXPECT_FALSE(runs("90-virtual", 8, 9));
  EXPECT_TRUE(runs("90", 9, 0));
  EXPECT_TRUE(runs("90", 10, 3));
  EXPECT_TRUE(runs("90a-real", 9, 0));
  EXPECT_FALSE(runs("90a-real", 10, 0));
  EXPECT_FALSE(runs("90a", 10, 0));  // PTX of it neither
  EXPECT_FALSE(runs("", 9, 0));
}

TEST(CudaArchitectures, AReleaseRunsOnEveryCardSinceAmpere) {
  const char* release = "80-real 89-real 90a-real 100 120";
  for (const auto& [major, minor] :
       {std::pair(8, 0), std::pair(8, 6), std::pair(8, 9), std::pair(9, 0), std::pair(10, 0),
        std::pair(10, 3), std::pair(11, 0), std::pair(12, 0), std::pair(12, 1), std::pair(13, 0)})
    EXPECT_TRUE(runs(release, major, minor)) << major << "." << minor;
  EXPECT_FALSE(runs(release, 7, 5));
}

TEST(CudaArchitectures, ACardWithoutCodeIsToldWhatToBuild) {
  const std::string other = problem_of_architecture("90a-real", 8, 9);
  EXPECT_NE(other.find("8.9"), std::string::npos) << other;
  EXPECT_NE(other.find("-DONEFOLD_CUDA_ARCHITECTURES=89"), std::string::npos) << other;
  const std::string old = problem_of_architecture("70", 7, 0);
  EXPECT_NE(old.find("8.0 or later"), std::string::npos) << old;
}

}  // namespace
}  // namespace onefold
