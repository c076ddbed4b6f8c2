// Meshes: which ranks are neighbours along which axis, and groups of ranks that exchange among
// themselves.
#include "comm/mesh.h"

#include "base/clock.h"
#include "comm/groups.h"
#include "comm/threads.h"
#include "error_text.h"

namespace onefold {
namespace {

using Members = std::vector<int>;

TEST(Mesh, TensorIsInnermost) {
  const Mesh mesh(6, {.tensor = 2});
  EXPECT_EQ(mesh.size(Axis::data), 3);
  EXPECT_EQ(mesh.group(Axis::tensor, 3).members, (Members{2, 3}));
  EXPECT_EQ(mesh.group(Axis::data, 3).members, (Members{1, 3, 5}));
  EXPECT_EQ(mesh.place(Axis::tensor, 3), 1);
  EXPECT_EQ(mesh.place(Axis::data, 3), 1);
  EXPECT_EQ(mesh.group(Axis::tensor, 3).text(), "tensor group of ranks 2, 3");
}

TEST(Mesh, PipelineIsOutermost) {
  const Mesh mesh(12, {.tensor = 2, .pipeline = 3});
  EXPECT_EQ(mesh.size(Axis::data), 2);
  EXPECT_EQ(mesh.stage_ranks(), 4);
  EXPECT_EQ(mesh.group(Axis::pipeline, 5).members, (Members{1, 5, 9}));
  EXPECT_EQ(mesh.group(Axis::data, 5).members, (Members{5, 7}));
  EXPECT_EQ(mesh.group(Axis::tensor, 5).members, (Members{4, 5}));
  EXPECT_EQ(mesh.place(Axis::pipeline, 9), 2);
  EXPECT_EQ(mesh.place(Axis::data, 9), 0);
  EXPECT_EQ(mesh.group(Axis::pipeline, 5).text(), "pipeline group of ranks 1, 5, 9");
}

TEST(Mesh, HasFiveAxes) {
  const Mesh mesh(2 * 3 * 2 * 2 * 2, {.tensor = 2, .context = 3, .expert = 2, .pipeline = 2});
  EXPECT_EQ(mesh.ranks(), 48);
  EXPECT_EQ(mesh.size(Axis::data), 2);
  EXPECT_EQ(mesh.group(Axis::context, 1).members, (Members{1, 3, 5}));
  EXPECT_EQ(mesh.group(Axis::expert, 1).members, (Members{1, 7}));
  EXPECT_EQ(mesh.group(Axis::data, 1).members, (Members{1, 13}));
  EXPECT_EQ(mesh.group(Axis::pipeline, 1).members, (Members{1, 25}));
}

TEST(Mesh, AGroupMayHaveSeveralAxes) {
  const Mesh mesh(24, {.tensor = 2, .context = 2, .expert = 2});
  EXPECT_EQ(mesh.group({Axis::context, Axis::data}, 5).members, (Members{5, 7, 13, 15, 21, 23}));
  EXPECT_EQ(mesh.group({Axis::data, Axis::context}, 5).members,
            mesh.group({Axis::context, Axis::data}, 23).members);
  EXPECT_EQ(mesh.group({Axis::context, Axis::data}, 1).text(),
            "context x data group of ranks 1, 3, 9, 11, 17, 19");
}

TEST(Mesh, EveryRankIsInOneGroupOfEachAxis) {
  for (const auto& [tensor, pipeline] :
       {std::pair(1, 1), std::pair(2, 1), std::pair(3, 2), std::pair(4, 3), std::pair(6, 1),
        std::pair(12, 1), std::pair(1, 12), std::pair(2, 3)}) {
    const Mesh mesh(12, {.tensor = tensor, .pipeline = pipeline});
    for (const Axis axis : {Axis::data, Axis::tensor, Axis::pipeline})
      for (int rank = 0; rank < 12; ++rank) {
        const RankGroup group = mesh.group(axis, rank);
        EXPECT_EQ(group.size(), mesh.size(axis));
        EXPECT_EQ(group.index_of(rank), mesh.place(axis, rank));
        for (const int other : group.members)
          EXPECT_EQ(mesh.group(axis, other).members, group.members);
      }
  }
}

TEST(Mesh, ReplicasAreNeighboursInATensorGroup) {
  const Mesh mesh(12, {.tensor = 6});
  EXPECT_EQ(mesh.replicas(1, 3).members, (Members{0, 1, 2}));
  EXPECT_EQ(mesh.replicas(10, 3).members, (Members{9, 10, 11}));
}

TEST(Mesh, ThatDoesNotDivideTheRanksIsRefused) {
  EXPECT_ERROR(Mesh(6, {.tensor = 4}), "mesh.tensor is 4, and the 6 ranks cannot be divided by it");
  EXPECT_ERROR(Mesh(6, {.pipeline = 4}),
               "mesh.pipeline is 4, and the 6 ranks cannot be divided by it");
  EXPECT_ERROR(Mesh(6, {.tensor = 2, .pipeline = 2}),
               "mesh.tensor 2 x mesh.pipeline 2 is 4, and the 6 ranks");
}

class Groups : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(Groups, OfEachAxisHaveTheBitsOfTheOracle) {
  const auto [ranks, tensor] = GetParam();
  const Mesh mesh(ranks, {.tensor = tensor});
  const auto errors =
      test::run_ranks(ranks, {}, [&](Communicator& all) { test::check_groups(all, mesh); });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(Meshes, Groups,
                         testing::Values(std::pair(2, 2), std::pair(4, 2), std::pair(6, 3),
                                         std::pair(6, 2), std::pair(8, 4)));

// Ranks are named by their numbers among all, and the group by its own.
TEST(GroupFaults, ARankThatDoesNotComeIsNamedWithItsGroup) {
  const Mesh mesh(4, {.tensor = 2});
  const auto errors = test::run_ranks(4, {.timeout_seconds = 0.3}, [&](Communicator& all) {
    const auto group = all.group(mesh.group(Axis::tensor, all.rank()));
    const auto channel = group->open("exchange", nullptr);
    if (all.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    channel->barrier("step 5");
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_TRUE(contains(errors[2],
                       "rank 3 did not reach barrier \"step 5\" on channel \"exchange, "
                       "tensor group of ranks 2, 3\""))
      << errors[2];
}

TEST(GroupFaults, CallsThatDifferAreNamedByAllRanks) {
  const Mesh mesh(4, {.tensor = 2});
  const auto errors = test::run_ranks(4, {}, [&](Communicator& all) {
    const auto group = all.group(mesh.group(Axis::tensor, all.rank()));
    const auto channel = group->open("exchange", nullptr);
    channel->barrier(all.rank() == 3 ? "b" : "a");
  });
  EXPECT_TRUE(contains(errors[2], "rank 2 calls barrier \"a\", rank 3 calls barrier \"b\""))
      << errors[2];
}

// A failure in one group ends the calls of the others too.
TEST(GroupFaults, AFailureReachesEveryGroup) {
  const Mesh mesh(4, {.tensor = 2});
  const double begin = now_seconds();
  const auto errors = test::run_ranks(4, {.timeout_seconds = 60}, [&](Communicator& all) {
    const auto group = all.group(mesh.group(Axis::tensor, all.rank()));
    const auto channel = group->open("exchange", nullptr);
    if (all.rank() == 3) return group->abort("as the test asks");
    if (all.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (int i = 0; i < 1000000; ++i) channel->barrier("again");
  });
  for (const int rank : {0, 1, 2})
    EXPECT_TRUE(contains(errors[static_cast<size_t>(rank)], "rank 3 failed: as the test asks"))
        << errors[static_cast<size_t>(rank)];
  EXPECT_LT(now_seconds() - begin, 30);
}

// For plans: whether a group's messages leave a host, and how many of its ranks are on it.
TEST(GroupsOfPlans, KnowTheirHosts) {
  const auto members = [](int ranks, const MeshAxes& axes, const std::vector<Axis>& along) {
    const auto all = make_dry_communicator(ranks, 0, 5, 4);
    return all->group(Mesh(ranks, axes).group(along, 5))->open("gather", nullptr)->host_members();
  };
  EXPECT_EQ(members(16, {.tensor = 4}, {Axis::tensor}), 0);
  EXPECT_EQ(members(16, {.tensor = 4}, {Axis::data}), 1);
  EXPECT_EQ(members(16, {.tensor = 2}, {Axis::data}), 2);
  EXPECT_EQ(members(16, {.tensor = 8}, {Axis::tensor}), 4);
  EXPECT_EQ(make_dry_communicator(16, 0, 5, 4)->open("gather", nullptr)->host_members(), 4);
  EXPECT_EQ(make_dry_communicator(4, 0, 1, 4)->open("gather", nullptr)->host_members(), 0);
  EXPECT_EQ(make_dry_communicator(16)->open("gather", nullptr)->host_members(), 0);
}

TEST(Groups, OfADryCommunicatorHaveTheirSizes) {
  const auto all = make_dry_communicator(6, 100, 4);
  const auto data = all->group(Mesh(6, {.tensor = 2}).group(Axis::data, 4));
  EXPECT_EQ(data->rank(), 2);
  EXPECT_EQ(data->ranks(), 3);
  EXPECT_EQ(data->scratch_bytes(), 100);
  EXPECT_EQ(all->group(Mesh(6, {.tensor = 6}).group(Axis::data, 4))->scratch_bytes(), 0);
}

}  // namespace
}  // namespace onefold
