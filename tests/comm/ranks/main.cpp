// One rank under mpirun, which runs the scenario that its argument names: mpi_test.cpp starts
// these. Prints what it throws, and exits with 1.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "comm/collectives.h"
#include "comm/faults.h"
#include "comm/groups.h"
#include "comm/mpi.h"

namespace {
std::atomic<bool> g_no_answer = false;
}

// Is called instead of the library's own, and can block its caller.
extern "C" int MPI_Abort(void* communicator, int code) {
  while (g_no_answer) pause();
  using Abort = int (*)(void*, int);
  return reinterpret_cast<Abort>(dlsym(RTLD_NEXT, "MPI_Abort"))(communicator, code);
}

namespace onefold {
namespace {

// A channel with its scratch, filled with a value that must not affect any result.
struct Opened {
  std::vector<float> scratch;
  std::unique_ptr<Channel> channel;

  Opened(Communicator& communicator, const char* name)
      : scratch(static_cast<size_t>(communicator.scratch_bytes() / 4), -7.0f),
        channel(communicator.open(name, scratch.data())) {}
};

void collectives(Communicator& communicator) {
  EXPECT_STREQ(communicator.transport(), "mpi");
  EXPECT_LE(communicator.scratch_bytes(), int64_t{8} << 20);
  EXPECT_LT(communicator.place().rank, communicator.place().ranks);
  EXPECT_EQ(communicator.host().rank, communicator.rank());  // all tests run on one machine
  EXPECT_EQ(communicator.host().ranks, communicator.ranks());
  Opened first(communicator, "first"), second(communicator, "second");
  test::check_collectives(*first.channel);
  std::thread lane([&] {
    for (int i = 0; i < 20; ++i) test::check_all_gather(*second.channel, {i, 3}, i % 2 == 0);
  });
  for (int i = 0; i < 20; ++i) test::check_all_reduce(*first.channel, {37, i});
  lane.join();
}

// Beyond one message, and beyond the scratch.
void large(Communicator& communicator) {
  Opened opened(communicator, "test");
  const int64_t elems = (int64_t{9} << 20) / communicator.ranks() + 13;
  test::check_all_gather(*opened.channel, {elems, 5}, false);
  test::check_reduce_scatter(*opened.channel, {elems, 5, elems / 3}, true);
  test::check_reduce_scatter<double>(*opened.channel, {elems / 2, 5, elems / 3}, false);
  test::check_broadcast(*opened.channel, 5000001, communicator.ranks() - 1);
  test::check_all_to_all(*opened.channel, elems);
}

// More bytes than an int counts. One byte in each of 4 MiB is checked.
void huge(Communicator& communicator) {
  Opened opened(communicator, "test");
  const int ranks = communicator.ranks(), rank = communicator.rank();
  constexpr int64_t kStep = int64_t{4} << 20;
  const int64_t shard = (int64_t{2300} << 20) / ranks + 13, bytes = shard * ranks;
  std::vector<unsigned char> whole(static_cast<size_t>(bytes));
  const auto expected = [&](int64_t i) { return static_cast<unsigned char>(1 + i / kStep % 251); };
  for (int64_t i = 0; i < bytes; i += kStep)
    if (i / shard == rank) whole[static_cast<size_t>(i)] = expected(i);
  const Message message{whole.data(), whole.data() + rank * shard, shard, DType::u8};
  opened.channel->all_gather("huge", {&message, 1});
  for (int64_t i = 0; i < bytes; i += kStep)
    EXPECT_EQ(whole[static_cast<size_t>(i)], expected(i)) << i;
  if (rank != ranks - 1) std::fill(whole.begin(), whole.end(), 0);
  opened.channel->broadcast("huge", ranks - 1, whole.data(), bytes);
  for (int64_t i = 0; i < bytes; i += kStep)
    EXPECT_EQ(whole[static_cast<size_t>(i)], expected(i)) << i;
}

// A call that differs on rank 1 in one way, and a later one, which must throw the same error.
void disagree(Communicator& communicator, const std::string& how) {
  Opened opened(communicator, "test");
  Channel& channel = *opened.channel;
  const bool odd = communicator.rank() == 1;
  std::vector<float> x(64), y(64);
  channel.barrier("a call before");
  std::string first;
  try {
    if (odd && how == "words")
      channel.barrier("gather block.2");
    else if (odd && how == "call")
      channel.all_to_all("gather block.3", x.data(), y.data(), 4);
    else {
      const Message message{x.data(), y.data(), odd && how == "size" ? 2 : 1};
      channel.all_gather("gather block.3", {&message, 1});
    }
  } catch (const PeerError& error) {
    first = error.what();
  }
  const std::string again = [&] {
    try {
      channel.barrier("later");
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  }();
  if (again != first) throw PeerError("the later call throws: " + again);
  throw PeerError(first);
}

// Rank 1 does not reach the second call.
void absent(Communicator& communicator, const std::string& how) {
  Opened opened(communicator, "test");
  opened.channel->barrier("first");
  if (communicator.rank() == 1) {
    if (how == "hang") pause();
    if (how == "abort") communicator.abort("the disk is full");
    if (how == "stuck abort") {
      g_no_answer = true;
      communicator.abort("the disk is full");
    }
    if (how == "throw") throw std::runtime_error("an exception of rank 1");
    if (how == "kill") raise(SIGKILL);
    if (how == "leave") return;
  }
  opened.channel->barrier("second");
}

// A message too large to be sent before it is received, to a rank that hangs.
void unreceived(Communicator& communicator) {
  Opened opened(communicator, "test");
  const std::vector<float> x(size_t{4} << 20);
  if (communicator.rank() == 1) pause();
  opened.channel->send("activations", 1, x.data(), static_cast<int64_t>(4 * x.size()));
}

// The last rank reaches the last call late and leaves at once: its closing message, which may
// arrive before the messages of that call, is no failure.
void late(Communicator& communicator) {
  Opened opened(communicator, "test");
  if (communicator.rank() == communicator.ranks() - 1)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  opened.channel->barrier("last");
}

void fault(Communicator& communicator, unsigned seed) {
  Opened opened(communicator, "test");
  const auto plan = test::plan_fault(seed, communicator.ranks(), test::kProcessFaults);
  test::run_with_fault(communicator, *opened.channel, seed, plan, [&](test::Fault fault) {
    if (fault == test::Fault::abort) communicator.abort("as the test asks");
    if (fault == test::Fault::hang) pause();
    if (fault == test::Fault::raise) throw std::runtime_error("an exception");
    if (fault == test::Fault::exit_early) std::_Exit(4);
    if (fault == test::Fault::kill) raise(SIGKILL);
  });
}

void run(Communicator& communicator, const std::string& scenario, const std::string& detail) {
  if (scenario == "collectives" || scenario == "unchecked") return collectives(communicator);
  if (scenario == "large") return large(communicator);
  if (scenario == "groups")
    return test::check_groups(communicator,
                              Mesh(communicator.ranks(), {.tensor = std::stoi(detail)}));
  if (scenario == "huge") return huge(communicator);
  if (scenario == "disagree") return disagree(communicator, detail);
  if (scenario == "absent") return absent(communicator, detail);
  if (scenario == "unreceived") return unreceived(communicator);
  if (scenario == "late") return late(communicator);
  if (scenario == "fault") return fault(communicator, static_cast<unsigned>(std::stoul(detail)));
  throw std::runtime_error("no scenario " + scenario);
}

int rank_main(const std::string& scenario, const std::string& detail) {
  // Where the timeout of the other ranks must not be what ends the run, it is long.
  const bool short_wait = (scenario == "absent" && detail != "stuck abort") ||
                          scenario == "fault" || scenario == "unreceived";
  const double timeout = short_wait ? 1.5 : 60;
  int rank = -1;
  try {
    const auto communicator =
        join_mpi({.timeout_seconds = timeout, .check = scenario != "unchecked"});
    rank = communicator->rank();
    run(*communicator, scenario, detail);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {} throws: {}\n", rank, error.what());
    std::fflush(stderr);
    // The launcher ends all processes when the first one exits: wait until all have printed.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 1;
  }
  return testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace onefold

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return onefold::rank_main(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
}
