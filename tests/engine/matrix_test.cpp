// The matrix of configurations on ranks as threads and under mpirun: engine_ranks checks that all
// end with the same bits and hold what was planned, and here the two are compared.
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "comm/mpi_library.h"
#include "engine/optimizers.h"
#include "launch.h"
#include "sanitized.h"

namespace onefold {
namespace {

using test::Ended;

// The configurations with their hashes. Peaks follow there: those differ, as MPI has scratch.
std::vector<std::string> hashes(const Ended& ended) {
  std::istringstream text(ended.output);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    const size_t hash = line.find(" | "), planned = line.find(" | ", hash + 1);
    if (planned != std::string::npos) lines.push_back(line.substr(0, planned));
  }
  return lines;
}

void compare(int ranks, const std::string& arguments, size_t configurations, int limit_seconds) {
  const std::string command = fmt::format("{} {}", ONEFOLD_RANKS, arguments);
  const Ended threads = test::launch(fmt::format("{} --ranks {}", command, ranks), limit_seconds);
  ASSERT_EQ(threads.code, 0) << threads.output;
  EXPECT_EQ(hashes(threads).size(), configurations) << threads.output;
  if (mpi_library().api == nullptr) GTEST_SKIP() << "no MPI here";
  if (const std::string why = test::no_mpirun(ONEFOLD_SANITIZE); !why.empty()) GTEST_SKIP() << why;
  const Ended mpi = test::mpirun(ranks, command, limit_seconds);
  ASSERT_EQ(mpi.code, 0) << mpi.output;
  EXPECT_EQ(hashes(mpi), hashes(threads));
  fmt::print("threads {:.1f} s, MPI {:.1f} s\n", threads.seconds, mpi.seconds);
}

TEST(PartOfTheMatrix, HasTheSameBitsAndPeaks) { compare(2, "--quick --steps 2", 24, 120); }

TEST(OptimizerMatrix, HasTheSameBitsAndPeaksOverThreadsAndMpi) {
  if (test::kSanitized) GTEST_SKIP() << "Optimizers.* run the same on threads";
  compare(3, "--optimizers --steps 3", test::all_optimizers().size() * 2 * 4, 240);
}

TEST(CompressionMatrix, HasTheSameBitsAndPeaksOverThreadsAndMpi) {
  if (test::kSanitized) GTEST_SKIP() << "Compression.* run the same on threads";
  compare(3, "--compressions --steps 3", 18 * 3 + 4, 240);
}

TEST(CompressionMeshMatrix, HasTheSameBitsAndPeaksOverThreadsAndMpi) {
  if (test::kSanitized) GTEST_SKIP() << "CompressedMeshes.* run the same on threads";
  compare(4, "--compressed-meshes --steps 3", 3 * 4 * 2, 240);
}

class WholeMatrix : public testing::TestWithParam<int> {};

TEST_P(WholeMatrix, HasTheSameBitsAndPeaks) {
  if (std::getenv("ONEFOLD_SLOW_TESTS") == nullptr) GTEST_SKIP() << "ONEFOLD_SLOW_TESTS is not set";
  compare(GetParam(), "--steps 20", 216, 850);
}

INSTANTIATE_TEST_SUITE_P(Matrix, WholeMatrix, testing::Values(2, 3, 4, 8),
                         [](const auto& info) { return fmt::format("On{}Ranks", info.param); });

}  // namespace
}  // namespace onefold
