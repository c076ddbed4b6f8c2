// The environment variables that launchers set for the processes they start.
#include "comm/launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "comm/mpi.h"

namespace onefold {
namespace {

using Environment = std::map<std::string, std::string>;

// Sets given variables and no other launcher's. The destructor restores the environment: the tests
// themselves may run under a launcher.
class Launcher : public testing::Test {
 protected:
  ~Launcher() override {
    clear();
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Launcher() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (is_launchers(text)) before_[text.substr(0, text.find('='))] = value_of(text);
    }
  }

  static Launched read(const Environment& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return read_launcher();
  }

 private:
  static bool is_launchers(const std::string& entry) {
    for (const char* prefix : {"OMPI_COMM_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_"})
      if (entry.starts_with(prefix)) return true;
    return false;
  }
  static std::string value_of(const std::string& entry) {
    return entry.substr(entry.find('=') + 1);
  }
  static void clear() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry)
      if (const std::string text = *entry; is_launchers(text))
        names.push_back(text.substr(0, text.find('=')));
    for (const std::string& name : names) unsetenv(name.c_str());
  }

  Environment before_;
};

void expect_place(const Launched& launched, int rank, int ranks, int local_rank, int local_ranks) {
  EXPECT_EQ(launched.rank, rank);
  EXPECT_EQ(launched.ranks, ranks);
  EXPECT_EQ(launched.local_rank, local_rank);
  EXPECT_EQ(launched.local_ranks, local_ranks);
}

TEST_F(Launcher, WithoutOneNothingIsSet) {
  const Launched launched = read({});
  EXPECT_FALSE(launched.rank || launched.ranks || launched.local_rank || launched.local_ranks);
  EXPECT_FALSE(mpi_launched());
}

TEST_F(Launcher, OpenMpi) {
  expect_place(read({{"OMPI_COMM_WORLD_RANK", "5"},
                     {"OMPI_COMM_WORLD_SIZE", "8"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
               5, 8, 1, 4);
  EXPECT_TRUE(mpi_launched());
}

TEST_F(Launcher, Hydra) {
  expect_place(read({{"PMI_RANK", "3"},
                     {"PMI_SIZE", "6"},
                     {"MPI_LOCALRANKID", "0"},
                     {"MPI_LOCALNRANKS", "3"}}),
               3, 6, 0, 3);
  EXPECT_TRUE(mpi_launched());
}

TEST_F(Launcher, SlurmWithNodesOfDifferentCounts) {
  const Environment step = {{"SLURM_STEP_NUM_TASKS", "7"},
                            {"SLURM_PROCID", "6"},
                            {"SLURM_LOCALID", "0"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                            {"SLURM_TASKS_PER_NODE", "9(x4)"}};  // of the whole job
  for (const auto& [node, count] : {std::pair{"0", 2}, {"2", 2}, {"3", 1}}) {
    Environment on_node = step;
    on_node["SLURM_NODEID"] = node;
    expect_place(read(on_node), 6, 7, 0, count);
    EXPECT_TRUE(mpi_launched());
  }
}

TEST_F(Launcher, SlurmWithTheSameOnEachNode) {
  expect_place(read({{"SLURM_STEP_NUM_TASKS", "8"},
                     {"SLURM_PROCID", "7"},
                     {"SLURM_LOCALID", "3"},
                     {"SLURM_NODEID", "1"},
                     {"SLURM_NTASKS_PER_NODE", "4"}}),
               7, 8, 3, 4);
}

// mpirun inside a job, and a process that is not a rank.
TEST_F(Launcher, SlurmsJobIsNotItsStep) {
  const Environment job = {{"SLURM_NTASKS", "8"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_TASKS_PER_NODE", "4(x2)"}};
  const Launched alone = read(job);
  EXPECT_FALSE(alone.rank || alone.ranks || alone.local_rank || alone.local_ranks);
  EXPECT_FALSE(mpi_launched());
  Environment inside = job;
  inside["SLURM_STEP_NUM_TASKS"] = "1";
  inside.insert({{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  expect_place(read(inside), 1, 2, 1, 2);
}

TEST_F(Launcher, PmixGivesTheRankAlone) {
  const Launched launched = read({{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prterun-1@1"}});
  EXPECT_EQ(launched.rank, 2);
  EXPECT_FALSE(launched.ranks || launched.local_rank || launched.local_ranks);
  EXPECT_TRUE(mpi_launched());
}

TEST_F(Launcher, ValuesThatAreNoNumbersAreIgnored) {
  const Launched launched = read({{"OMPI_COMM_WORLD_SIZE", "many"},
                                  {"PMI_SIZE", "3"},
                                  {"MPI_LOCALNRANKS", "99999999999999999999"},
                                  {"MPI_LOCALRANKID", "-1"}});
  EXPECT_EQ(launched.ranks, 3);
  EXPECT_FALSE(launched.local_rank || launched.local_ranks);
}

TEST(SlurmCount, OfEachNode) {
  EXPECT_EQ(slurm_count("4", 0), 4);
  EXPECT_EQ(slurm_count("2(x3),1", 2), 2);
  EXPECT_EQ(slurm_count("2(x3),1", 3), 1);
  EXPECT_EQ(slurm_count("1,5(x2),3", 0), 1);
  EXPECT_EQ(slurm_count("1,5(x2),3", 2), 5);
  EXPECT_EQ(slurm_count("2(x2147483647)", 2147483646), 2);
  for (const char* wrong : {"", "x", "2(x3", "2(3)", "2(x)", "-2", ",2", "4(x1)", "2(x2147483648)"})
    EXPECT_FALSE(slurm_count(wrong, 1)) << wrong;
}

}  // namespace
}  // namespace onefold
