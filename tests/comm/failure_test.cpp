// Ranks as threads that fail: all ranks end at once, with the same error, which names the ranks and
// the calls.
#include <gtest/gtest.h>

#include <atomic>

#include "base/clock.h"
#include "comm/faults.h"
#include "comm/threads.h"
#include "error_text.h"

namespace onefold {
namespace {

using test::Fault;
using test::run_ranks;
using Errors = std::vector<std::string>;

void expect_all_contain(const Errors& errors, const std::vector<std::string>& words) {
  for (size_t r = 0; r < errors.size(); ++r)
    for (const std::string& word : words)
      EXPECT_TRUE(contains(errors[r], word)) << "rank " << r << ": " << errors[r];
}

void gather(Channel& channel, const char* what, int64_t elems, size_t messages = 1) {
  std::vector<float> whole(static_cast<size_t>(elems * channel.ranks())), shard(whole.size());
  const std::vector<Message> all(messages, {whole.data(), shard.data(), elems});
  channel.all_gather(what, all);
}

TEST(Disagreement, OfWordsNamesBothSides) {
  expect_all_contain(run_ranks(3, {},
                               [](Communicator& c) {
                                 const auto channel = c.open("test", nullptr);
                                 gather(*channel, c.rank() == 2 ? "block.4" : "block.3", 5);
                               }),
                     {"rank 0 calls all_gather \"block.3\" (20 bytes)",
                      "rank 2 calls all_gather \"block.4\" (20 bytes)"});
}

TEST(Disagreement, OfCallsNamesBothSides) {
  expect_all_contain(
      run_ranks(2, {},
                [](Communicator& c) {
                  const auto channel = c.open("test", nullptr);
                  if (c.rank() == 0) channel->barrier("end of step 17");
                  if (c.rank() == 1) gather(*channel, "block.3", 5);
                }),
      {"rank 0 calls barrier \"end of step 17\"", "rank 1 calls all_gather \"block.3\""});
}

TEST(Disagreement, OfSizesNamesBothSides) {
  expect_all_contain(run_ranks(2, {},
                               [](Communicator& c) {
                                 const auto channel = c.open("test", nullptr);
                                 gather(*channel, "x", 5 + c.rank());
                               }),
                     {"(20 bytes)", "(24 bytes)"});
  expect_all_contain(run_ranks(2, {},
                               [](Communicator& c) {  // the same number of bytes
                                 const auto channel = c.open("test", nullptr);
                                 gather(*channel, "x", c.rank() == 0 ? 6 : 3,
                                        c.rank() == 0 ? 1 : 2);
                               }),
                     {"(24 bytes)", "(24 bytes in 2 messages)"});
}

// The same number of bytes, of another type or in messages of other sizes: the texts of the calls
// alone would be the same.
TEST(Disagreement, OfTypesNamesBoth) {
  expect_all_contain(
      run_ranks(2, {},
                [](Communicator& c) {
                  double whole[2] = {}, shard[1] = {};
                  const Message one{whole, shard, 1, DType::f64};
                  const Message two{whole, shard, 2, DType::f32};
                  c.open("test", nullptr)->all_gather("x", {c.rank() == 0 ? &one : &two, 1});
                }),
      {"rank 1 calls all_gather \"x\" (8 bytes) with elements of f32 instead of f64"});
  expect_all_contain(
      run_ranks(2, {},
                [](Communicator& c) {
                  float whole[6] = {}, shard[3] = {};
                  const int64_t first = 1 + c.rank();
                  const Message messages[] = {{whole, shard, first}, {whole, shard, 3 - first}};
                  c.open("test", nullptr)->all_gather("x", messages);
                }),
      {"(12 bytes in 2 messages) with other sizes or types of its messages"});
}

TEST(Disagreement, OfRootsNamesBothSides) {
  expect_all_contain(run_ranks(2, {},
                               [](Communicator& c) {
                                 float x = 0;
                                 c.open("test", nullptr)->broadcast("x", c.rank(), &x, 4);
                               }),
                     {"broadcast from rank 0", "broadcast from rank 1"});
}

TEST(Disagreement, OfChannelsNamesBoth) {
  const Errors errors = run_ranks(2, {}, [](Communicator& c) {
    c.open(c.rank() == 0 ? "gather" : "reduce", nullptr)->barrier("x");
  });
  expect_all_contain(errors, {"\"gather\"", "\"reduce\"", "same order"});
}

TEST(Disagreement, OfMessagesNamesBothSides) {
  expect_all_contain(run_ranks(2, {},
                               [](Communicator& c) {
                                 float x[4] = {};
                                 const auto channel = c.open("test", nullptr);
                                 if (c.rank() == 0) channel->send("activations", 1, x, 16);
                                 if (c.rank() == 1) channel->receive("activations", 0, x, 8);
                               }),
                     {"rank 0 calls send to rank 1 \"activations\" (16 bytes)",
                      "rank 1 calls receive from rank 0 \"activations\" (8 bytes)"});
}

// Neither call could complete; the error does not wait for the timeout.
TEST(Disagreement, OfAMessageAndACollectiveIsFoundAtOnce) {
  for (const bool sends : {true, false}) {
    const double begin = now_seconds();
    const Errors errors = run_ranks(2, {.timeout_seconds = 100}, [&](Communicator& c) {
      float x[4] = {};
      const auto channel = c.open("test", nullptr);
      if (c.rank() == 1) return gather(*channel, "block.3", 5);
      sends ? channel->send("activations", 1, x, 16) : channel->receive("activations", 1, x, 16);
    });
    expect_all_contain(errors, {sends ? "send to rank 1" : "receive from rank 1", "all_gather"});
    EXPECT_LT(now_seconds() - begin, 20);
  }
}

TEST(Disagreement, OfTwoSendersIsFoundAtOnce) {
  expect_all_contain(run_ranks(2, {.timeout_seconds = 100},
                               [](Communicator& c) {
                                 float x = 0;
                                 c.open("test", nullptr)->send("x", 1 - c.rank(), &x, 4);
                               }),
                     {"send to rank 0", "send to rank 1"});
}

// Rank 1 of 3 makes one call and then runs `instead` in place of the second.
Errors without_rank_1(const CommOptions& options,
                      const std::function<void(Communicator&)>& instead) {
  std::atomic<int> ended{0};
  return run_ranks(3, options, [&](Communicator& c) {
    const auto channel = c.open("lane", nullptr);
    channel->barrier("first");
    if (c.rank() == 1) {
      instead(c);
      while (options.timeout_seconds < 1 && ended < 2) std::this_thread::yield();
      return;
    }
    try {
      gather(*channel, "gather block.3, step 17", 1024);
    } catch (...) {
      ++ended;
      throw;
    }
    ++ended;
  });
}

TEST(MissingRank, ThatHangsIsNamedWithItsLastCall) {
  const Errors errors = without_rank_1({.timeout_seconds = 0.2}, [](Communicator&) {});
  for (const size_t r : {size_t{0}, size_t{2}})
    for (const char* words :
         {"rank 1 did not reach", "\"gather block.3, step 17\" (4096 bytes)", "channel \"lane\"",
          "0.2 seconds", "ranks 0, 2 wait", "last call of rank 1 there was barrier \"first\""})
      EXPECT_TRUE(contains(errors[r], words)) << errors[r];
  EXPECT_EQ(errors[0], errors[2]);
}

TEST(MissingRank, ThatHasLeftIsNamed) {
  const double begin = now_seconds();
  const Errors errors = without_rank_1({.timeout_seconds = 100}, [](Communicator&) {});
  for (const size_t r : {size_t{0}, size_t{2}})
    for (const char* words : {"rank 1 left before", "\"gather block.3, step 17\""})
      EXPECT_TRUE(contains(errors[r], words)) << errors[r];
  EXPECT_LT(now_seconds() - begin, 20);
}

TEST(MissingRank, ThatAbortsGivesItsReason) {
  const double begin = now_seconds();
  const Errors errors = without_rank_1({.timeout_seconds = 100},
                                       [](Communicator& c) { c.abort("the disk is full"); });
  EXPECT_EQ(errors[0], "rank 1 failed: the disk is full");
  EXPECT_EQ(errors[2], errors[0]);
  EXPECT_LT(now_seconds() - begin, 20);
}

TEST(MissingRank, OnTheOtherSideOfAMessageIsNamed) {
  for (const bool sends : {true, false}) {
    const Errors errors = run_ranks(2, {.timeout_seconds = 100}, [&](Communicator& c) {
      float x = 0;
      const auto channel = c.open("lane", nullptr);
      if (c.rank() == 0) sends ? channel->send("x", 1, &x, 4) : channel->receive("x", 1, &x, 4);
    });
    for (const char* words :
         {"rank 1 left before", sends ? "send to rank 1" : "receive from rank 1",
          "rank 1 has made no call there"})
      EXPECT_TRUE(contains(errors[0], words)) << errors[0];
    EXPECT_EQ(errors[1], "");
  }
}

TEST(MissingRank, LeavingAfterTheLastCallIsNoFailure) {
  for (int i = 0; i < 200; ++i)
    for (const std::string& error :
         run_ranks(4, {}, [](Communicator& c) { gather(*c.open("lane", nullptr), "only", 9); }))
      ASSERT_EQ(error, "");
}

TEST(Failure, TheFirstOneIsRepeatedOnEveryChannel) {
  const Errors errors = run_ranks(2, {}, [](Communicator& c) {
    const auto first = c.open("first", nullptr), second = c.open("second", nullptr);
    second->barrier("before");
    if (c.rank() == 0) c.abort("first reason");
    if (c.rank() == 0) c.abort("second reason");
    for (Channel* channel : {first.get(), second.get(), first.get()})
      EXPECT_EQ(error_text([&] { channel->barrier("after"); }), "rank 0 failed: first reason");
    EXPECT_EQ(error_text([&] { c.open("third", nullptr); }), "rank 0 failed: first reason");
  });
  EXPECT_EQ(errors, Errors(2));
}

// An abort at any moment of a call: either all ranks complete the call, or none. If one rank threw
// while others proceed, they would wait for ever, or read memory that it has freed.
TEST(Failure, AnAbortDuringCallsEndsAllRanks) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const double delay = 1e-7 * (random() % 500);
    const Errors errors = run_ranks(3, {}, [&](Communicator& c) {
      const auto channel = c.open("lane", nullptr);
      channel->barrier("ready");
      std::thread aborts([&] {
        if (c.rank() != 1) return;
        for (const double until = now_seconds() + delay; now_seconds() < until;) {
        }
        c.abort("enough");
      });
      const std::string error = error_text([&] {
        for (int call = 0;; ++call) gather(*channel, "again", 1 + call % 100);
      });
      aborts.join();
      EXPECT_EQ(error, "rank 1 failed: enough");
    });
    ASSERT_EQ(errors, Errors(3));
  }
}

// 100 faults: one of 2 to 5 ranks fails at a random call. All others end with the same error, which
// names it; none hangs, and none reads memory that has been freed (asan, tsan).
class ThreadFaults : public testing::TestWithParam<unsigned> {};

TEST_P(ThreadFaults, EndAllRanks) {
  const unsigned seed = GetParam();
  const int ranks = 2 + static_cast<int>(seed / 8) % 4;
  const auto plan = test::plan_fault(seed, ranks, test::kThreadFaults);
  SCOPED_TRACE(test::fault_name(plan.fault));
  const bool hangs = plan.fault == Fault::hang;
  std::atomic<int> ended{0};
  const Errors errors =
      run_ranks(ranks, {.timeout_seconds = hangs ? 0.1 : 100}, [&](Communicator& c) {
        const auto channel = c.open("lane", nullptr);
        try {
          test::run_with_fault(c, *channel, seed, plan, [&](Fault fault) {
            if (fault == Fault::abort) c.abort("as the test asks");
            if (fault == Fault::raise) throw std::runtime_error("an exception");
            while (hangs && ended < ranks - 1) std::this_thread::yield();
          });
        } catch (const std::runtime_error& error) {
          ++ended;
          if (dynamic_cast<const PeerError*>(&error) != nullptr) throw;
        }
      });
  const std::string& error = errors[plan.rank == 0 ? 1 : 0];
  for (int r = 0; r < ranks; ++r) {
    if (r != plan.rank) {
      EXPECT_EQ(errors[static_cast<size_t>(r)], error);
    }
  }
  // A disagreement names rank 0 and the first rank that differs from it.
  const bool disagrees = plan.fault <= Fault::skipped_call;
  EXPECT_TRUE(contains(error, disagrees ? "rank 0 calls" : fmt::format("rank {}", plan.rank)))
      << error;
  EXPECT_TRUE(contains(error, plan.fault == Fault::abort ? "as the test asks" : "call ")) << error;
}

INSTANTIATE_TEST_SUITE_P(Seeds, ThreadFaults, testing::Range(0u, 100u));

}  // namespace
}  // namespace onefold
