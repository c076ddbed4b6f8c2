// Ranks as threads: the right bits, and the right traffic.
#include "comm/local.h"

#include "comm/collectives.h"
#include "comm/rank_sum.h"
#include "comm/threads.h"
#include "error_text.h"

namespace onefold {
namespace {

class LocalRanks : public testing::TestWithParam<int> {};

TEST_P(LocalRanks, EveryCollectiveHasTheBitsOfTheOracle) {
  const auto errors = test::run_ranks(GetParam(), {}, [](Communicator& communicator) {
    EXPECT_STREQ(communicator.transport(), "threads");
    EXPECT_EQ(communicator.scratch_bytes(), 0);
    const auto channel = communicator.open("test", nullptr);
    test::check_collectives(*channel);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Two lanes of each rank at once: calls of one channel do not wait for calls of another.
TEST_P(LocalRanks, ChannelsAreIndependent) {
  const auto errors = test::run_ranks(GetParam(), {}, [](Communicator& communicator) {
    const auto first = communicator.open("first", nullptr);
    const auto second = communicator.open("second", nullptr);
    std::thread lane([&] {
      for (int i = 0; i < 50; ++i) test::check_all_gather(*second, {i, 3}, i % 2 == 0);
    });
    for (int i = 0; i < 50; ++i) test::check_all_reduce(*first, {37, i});
    lane.join();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(Counts, LocalRanks, testing::Values(1, 2, 3, 4, 8));

// Thousands of tiny calls: no rank overtakes another, misses a wakeup or reads a stale value.
TEST(Local, ManySmallCallsInARow) {
  const auto errors = test::run_ranks(3, {}, [](Communicator& communicator) {
    const auto channel = communicator.open("test", nullptr);
    for (int i = 0; i < 3000; ++i) {
      float sum[3] = {static_cast<float>(i), static_cast<float>(communicator.rank()), 1.0f};
      const Message message{sum, nullptr, 1};
      channel->all_reduce("tiny", {&message, 1});
      ASSERT_EQ(sum[0], 3.0f * static_cast<float>(i));
      ASSERT_EQ(sum[1], 3.0f);
      ASSERT_EQ(sum[2], 3.0f);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Messages and collectives in turn: a rank that has completed its half of a message is already in a
// later call, which must not be reported as a conflict.
TEST(Local, ManyMessagesBetweenCollectives) {
  const auto errors = test::run_ranks(4, {}, [](Communicator& communicator) {
    const auto channel = communicator.open("test", nullptr);
    for (int i = 0; i < 500; ++i) {
      test::check_ring(*channel, 1 + i % 3);
      if (i % 3 == 0) channel->barrier("between");
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Local, CommunicatorsOutliveTheGroup) {
  std::unique_ptr<Communicator> only;
  {
    LocalGroup group(1);
    only = group.join(0);
    EXPECT_THROW(group.join(0), InternalError);
    EXPECT_THROW(group.join(1), InternalError);
  }
  const auto channel = only->open("test", nullptr);
  only.reset();
  test::check_collectives(*channel);
}

// In fp32, rank after rank, and rounded once: not after each addition.
TEST(RankSums, OfSixteenBitsAreRoundedOnce) {
  constexpr int kRanks = 3;
  constexpr int64_t kElems = 257;
  const auto check = [&]<class T>(T, DType dtype, auto widen, auto narrow) {
    std::vector<std::vector<T>> ranks(kRanks);
    for (int r = 0; r < kRanks; ++r)
      for (const float value : test::values(r, 7, kElems)) ranks[r].push_back({narrow(value)});
    std::vector<T> sum(kElems);
    RankSum(kRanks).sum(dtype, kElems, sum.data(), [&](int r) { return ranks[r].data(); });
    int once = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const float first = widen(ranks[0][i].bits) + widen(ranks[1][i].bits);
      EXPECT_EQ(sum[i].bits, narrow(first + widen(ranks[2][i].bits))) << i;
      once += sum[i].bits != narrow(widen(narrow(first)) + widen(ranks[2][i].bits));
    }
    EXPECT_GT(once, 0);  // the values tell the two apart
  };
  check(Bf16{}, DType::bf16, bf16_to_f32, f32_to_bf16);
  check(F16{}, DType::f16, f16_to_f32, f32_to_f16);
}

TEST(Local, TypesThatAreNotSummedAreRefusedByName) {
  LocalGroup group(1);
  const auto communicator = group.join(0);
  const auto channel = communicator->open("test", nullptr);
  float x[2] = {};
  for (const DType dtype : {DType::i32, DType::i64, DType::u8}) {
    const Message message{x, x, 1, dtype};
    for (const auto sum : {&Channel::all_reduce, &Channel::reduce_scatter}) {
      try {
        ((*channel).*sum)("x", {&message, 1});
        ADD_FAILURE() << dtype_name(dtype);
      } catch (const InternalError& error) {
        EXPECT_TRUE(contains(error.what(), fmt::format("of {} elements", dtype_name(dtype))))
            << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace onefold
