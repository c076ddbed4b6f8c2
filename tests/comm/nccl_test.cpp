// The path over NCCL, with a double behind its table: the right bits and traffic, and what a rank
// says where NCCL fails or stands still.
#include "comm/nccl.h"

#include <chrono>
#include <thread>

#include "comm/collectives.h"
#include "comm/mesh.h"
#include "comm/nccl_double.h"
#include "comm/nccl_library.h"
#include "comm/rank_sum.h"
#include "comm/threads.h"
#include "error_text.h"

namespace onefold {
namespace {

namespace nccl_double = test::nccl_double;

// The host's memory, with a stream that can be made to stand still.
class StuckMemory final : public RankMemory {
 public:
  explicit StuckMemory(int ranks) : host_(ranks) {}
  void copy(const void* src, void* dst, int64_t bytes) override { host_.copy(src, dst, bytes); }
  void sum(DType dtype, std::span<const void* const> sources, void* dst, int64_t elems) override {
    host_.sum(dtype, sources, dst, elems);
  }
  int64_t block_bytes() const override { return host_.block_bytes(); }
  int64_t mark() override { return ++marks_; }
  bool reached(int64_t mark) override { return mark < stuck_at_; }
  void stick_at(int64_t mark) { stuck_at_ = mark; }

 private:
  HostRankMemory host_;
  int64_t marks_ = 0;
  std::atomic<int64_t> stuck_at_{1 << 30};
};

// Each rank's channel over the double, with the scratch that it asks for.
struct Rank {
  Rank(Communicator& control, bool library_sums = false)
      : memory(control.ranks()),
        // The caller's, for as long as this lives.
        over(over_nccl({std::shared_ptr<void>(), &control},
                       {.library_sums = library_sums, .api = &nccl_double::kApi})),
        scratch(static_cast<size_t>(over->device_scratch_bytes())),
        channel(over->open_on(memory, "test", scratch.data())) {}

  StuckMemory memory;
  std::shared_ptr<Communicator> over;
  std::vector<std::byte> scratch;
  std::unique_ptr<Channel> channel;
};

class NcclTest : public testing::TestWithParam<int> {
 protected:
  ~NcclTest() override { nccl_double::faults().fails_at = nccl_double::faults().error_at = -1; }
};

TEST_P(NcclTest, EveryCollectiveHasTheBitsOfTheOracle) {
  const auto errors = test::run_ranks(GetParam(), {}, [](Communicator& communicator) {
    Rank rank(communicator);
    EXPECT_STREQ(rank.over->transport(), "nccl");
    test::check_collectives(*rank.channel);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Slabs beyond the scratch go in rounds.
TEST_P(NcclTest, LargeSumsGoInRounds) {
#ifdef ONEFOLD_SANITIZED
  if (GetParam() > 2) GTEST_SKIP() << "minutes under a sanitizer, and the calls of two ranks";
#endif
  const auto errors = test::run_ranks(GetParam(), {}, [](Communicator& communicator) {
    Rank rank(communicator);
    const int64_t elems = (nccl_scratch_bytes(2) / 4) / communicator.ranks() * 5 / 2 + 77;
    test::check_reduce_scatter(*rank.channel, {5, elems, 3}, false);
    test::check_all_reduce<double>(*rank.channel, {elems, 1});
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(NcclTest, TheLibrarysOwnSumsAreAnOption) {
  const auto errors = test::run_ranks(GetParam(), {}, [](Communicator& communicator) {
    Rank rank(communicator, true);
    test::check_collectives(*rank.channel);  // the double's own sums are ordered too
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Groups along two axes at once, on threads of their own, as lanes of messages have them.
TEST_P(NcclTest, GroupsOfEachAxisHaveTheBitsOfTheOracle) {
  const int ranks = 2 * GetParam();
  const auto errors = test::run_ranks(ranks, {}, [&](Communicator& communicator) {
    const auto over =
        over_nccl({std::shared_ptr<void>(), &communicator}, {.api = &nccl_double::kApi});
    const Mesh mesh(ranks, {.tensor = 2});
    const auto check = [&](Axis axis) {
      const RankGroup members = mesh.group(axis, over->rank());
      const std::unique_ptr<Communicator> group = over->group(members);
      EXPECT_STREQ(group->transport(), "nccl");
      EXPECT_EQ(group->rank(), mesh.place(axis, over->rank()));
      EXPECT_EQ(group->device_scratch_bytes(), nccl_scratch_bytes(mesh.size(axis)));
      StuckMemory memory(group->ranks());
      std::vector<std::byte> scratch(static_cast<size_t>(group->device_scratch_bytes()));
      const auto channel = group->open_on(memory, axis_name(axis), scratch.data());
      test::check_collectives(*channel);
    };
    std::thread lane([&] { check(Axis::data); });
    check(Axis::tensor);
    lane.join();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(Counts, NcclTest, testing::Values(1, 2, 3, 4));

void one_sum(Channel& channel, const std::string& what) {
  std::vector<float> data(static_cast<size_t>(channel.ranks()) * 8, 1.0f);
  const Message message{data.data(), nullptr, 8};
  channel.all_reduce(what, {&message, 1});
}

class NcclFaults : public NcclTest {};

TEST_F(NcclFaults, AnErrorOfACallNamesRankChannelAndCallOnAllRanks) {
  const auto errors = test::run_ranks(3, {.timeout_seconds = 20}, [](Communicator& communicator) {
    Rank rank(communicator);
    one_sum(*rank.channel, "reduce block.0.mlp, step 1");
    if (communicator.rank() == 0) nccl_double::faults().fails_at = nccl_double::faults().calls + 1;
    for (int i = 0; i < 5; ++i) one_sum(*rank.channel, "reduce block.1.mlp, step 1");
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "rank ")) << error;
    EXPECT_TRUE(contains(error, "all_reduce \"reduce block.1.mlp, step 1\"")) << error;
    EXPECT_TRUE(contains(error, "channel \"test\"")) << error;
    EXPECT_TRUE(contains(error, "unhandled system error") || contains(error, "was ended")) << error;
  }
}

TEST_F(NcclFaults, AnErrorBehindTheHostIsFoundAndEndsAllRanks) {
  const auto errors = test::run_ranks(2, {.timeout_seconds = 20}, [](Communicator& communicator) {
    Rank rank(communicator);
    one_sum(*rank.channel, "clip, step 1");
    rank.channel->barrier("before the error");
    if (communicator.rank() == 0) nccl_double::faults().error_at = 0;
    const auto begin = std::chrono::steady_clock::now();
    while (rank.over->failure().empty() &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(10))
      std::this_thread::yield();
    one_sum(*rank.channel, "after it");
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "NCCL reports an error")) << error;
    EXPECT_TRUE(contains(error, "channel \"test\"")) << error;
    EXPECT_TRUE(contains(error, "network error")) << error;
  }
}

TEST_F(NcclFaults, WorkThatStandsStillIsNamedWithinTheTimeout) {
  const auto errors = test::run_ranks(2, {.timeout_seconds = 2.5}, [](Communicator& communicator) {
    Rank rank(communicator);
    if (communicator.rank() == 1) rank.memory.stick_at(2);
    one_sum(*rank.channel, "reduce block.0.mlp, step 1");
    one_sum(*rank.channel, "reduce block.1.mlp, step 1");
    const auto begin = std::chrono::steady_clock::now();
    while (rank.over->failure().empty() &&
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(10))
      std::this_thread::yield();
    one_sum(*rank.channel, "after it");
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "rank 1")) << error;
    EXPECT_TRUE(contains(error, "all_reduce \"reduce block.1.mlp, step 1\"")) << error;
    EXPECT_TRUE(contains(error, "within 2.5 seconds")) << error;
  }
}

TEST_F(NcclFaults, ARankThatHangsIsNamedWithItsCall) {
  const auto errors = test::run_ranks(3, {.timeout_seconds = 2.5}, [](Communicator& communicator) {
    Rank rank(communicator);
    one_sum(*rank.channel, "reduce block.0.mlp, step 1");
    if (communicator.rank() == 2) {
      while (rank.over->failure().empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    one_sum(*rank.channel, "reduce block.1.mlp, step 1");
  });
  for (const int r : {0, 1}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    EXPECT_TRUE(contains(error, "rank 2 did not reach")) << error;
    EXPECT_TRUE(contains(error, "reduce block.1.mlp, step 1")) << error;
    EXPECT_TRUE(contains(error, "within 2.5 seconds")) << error;
  }
}

// A message whose receiver does not come, in a group: by its number among all.
TEST_F(NcclFaults, AReceiverThatDoesNotComeIsNamedWithTheMessage) {
  const auto errors = test::run_ranks(4, {.timeout_seconds = 2.5}, [](Communicator& communicator) {
    const auto over =
        over_nccl({std::shared_ptr<void>(), &communicator}, {.api = &nccl_double::kApi});
    const auto group = over->group(Mesh(4, {.pipeline = 2}).group(Axis::pipeline, over->rank()));
    StuckMemory memory(2);
    const auto channel = group->open_on(memory, "forward", nullptr);
    std::vector<float> data(64);
    if (over->rank() < 3) {
      if (group->rank() == 0) channel->send("block.1, micro 0, step 1", 1, data.data(), 256);
      if (group->rank() == 1) channel->receive("block.1, micro 0, step 1", 0, data.data(), 256);
    }
    while (over->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  EXPECT_TRUE(contains(errors[1], "rank 3 did not reach send")) << errors[1];
  EXPECT_TRUE(contains(errors[1], "block.1, micro 0, step 1, 256 bytes")) << errors[1];
  EXPECT_TRUE(contains(errors[1], "forward calls, pipeline group of ranks 1, 3")) << errors[1];
}

TEST_F(NcclFaults, ARankThatFailsEndsTheOthersWithItsReason) {
  const auto errors = test::run_ranks(3, {.timeout_seconds = 20}, [](Communicator& communicator) {
    Rank rank(communicator);
    if (communicator.rank() == 1) return rank.over->abort("out of luck");
    one_sum(*rank.channel, "clip, step 1");
  });
  for (const int r : {0, 2})
    EXPECT_TRUE(contains(errors[static_cast<size_t>(r)], "rank 1 failed: out of luck"))
        << errors[static_cast<size_t>(r)];
}

TEST(NcclLibraryTest, IsFoundOrSaysWhatToDo) {
  const NcclLibrary& library = nccl_library();
  if (library.api != nullptr)
    EXPECT_TRUE(std::string_view(library.api->library()).starts_with("NCCL 2."))
        << library.api->library();
  else
    EXPECT_TRUE(contains(library.problem, "Install")) << library.problem;
}

}  // namespace
}  // namespace onefold
