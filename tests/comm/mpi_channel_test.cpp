// A channel over a fake MPI in which a cancelled message still arrives: a real MPI may do that, but
// rarely does in a test.
#include "comm/mpi_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "error_text.h"

namespace onefold {

// The fake needs only the messages that each group has in flight.
struct MpiPort {
  struct Posted {
    void* to;  // null: a send
    int64_t bytes;
    int tag;
    bool pending = true;
  };
  std::vector<Posted> groups[kMpiGroups];
  std::deque<std::vector<std::byte>> headers;  // that rank 0 has sent; rank 1 sends the same
};

namespace {

// Rank 0 of 2. The other rank sends the same headers, and never sends data. Data that is cancelled
// still arrives, after some polls or never.
struct Fake {
  std::vector<std::unique_ptr<MpiPort>> ports;
  int polls_after_cancel = 0;  // for how many polls cancelled messages stay pending; -1: for ever
  int cancelled_polls = -1;    // polls since the first cancel; -1: none yet
  int data_pending = 0, written_after_cancel = 0;
};
Fake fake;

constexpr int kHeaderTag = 0, kDataTag = 1;

void complete(MpiPort::Posted& posted) {
  posted.pending = false;
  fake.data_pending -= posted.tag == kDataTag;
}

int poll(MpiPort* port, int group) {
  auto& posted = port->groups[group];
  if (fake.cancelled_polls >= 0) ++fake.cancelled_polls;
  bool done = true;
  for (auto& one : posted) {
    if (!one.pending) continue;
    if (one.to == nullptr) {
      complete(one);
    } else if (one.tag == kHeaderTag && !port->headers.empty()) {
      std::memcpy(one.to, port->headers.front().data(), static_cast<size_t>(one.bytes));
      port->headers.pop_front();
      complete(one);
    } else if (one.tag == kDataTag && fake.cancelled_polls >= 0 && fake.polls_after_cancel >= 0 &&
               fake.cancelled_polls > fake.polls_after_cancel) {
      std::memset(one.to, 0xAB, static_cast<size_t>(one.bytes));
      ++fake.written_after_cancel;
      complete(one);
    }
    done = done && !one.pending;
  }
  if (done) posted.clear();
  return done ? 1 : 0;
}

const MpiApi& fake_api() {
  static MpiApi api = [] {
    MpiApi table = {};
    table.version = kMpiApiVersion;
    table.rank = [] { return 0; };
    table.ranks = [] { return 2; };
    table.open = [] { return fake.ports.emplace_back(std::make_unique<MpiPort>()).get(); };
    table.send = [](MpiPort* port, int group, const void* data, int64_t bytes, int, int tag) {
      const auto* from = static_cast<const std::byte*>(data);
      if (tag == kHeaderTag) port->headers.emplace_back(from, from + bytes);
      port->groups[group].push_back({nullptr, bytes, tag});
      fake.data_pending += tag == kDataTag;
    };
    table.receive = [](MpiPort* port, int group, void* data, int64_t bytes, int, int tag) {
      port->groups[group].push_back({data, bytes, tag});
      fake.data_pending += tag == kDataTag;
    };
    table.poll = poll;
    table.is_pending = [](MpiPort* port, int group, int message) {
      return port->groups[group][static_cast<size_t>(message)].pending ? 1 : 0;
    };
    table.cancel = [](MpiPort*, int) { fake.cancelled_polls = std::max(fake.cancelled_polls, 0); };
    table.error = [](MpiPort*) { return "no error"; };
    table.end_all = [](int) {};
    return table;
  }();
  return api;
}

class CancelledMpi : public testing::Test {
 protected:
  ~CancelledMpi() override { fake = {}; }

  // The other rank hangs in the middle of a gather.
  static std::string gather() {
    MpiState state(fake_api(), {.timeout_seconds = 0.05}, {0, 2});
    std::vector<float> whole(200), shard(100),
        scratch(static_cast<size_t>(mpi_scratch_bytes(2) / 4));
    state.open();
    MpiChannel channel(state, "lane", scratch.data(), {.name = "", .members = {0, 1}});
    const Message message{whole.data(), shard.data(), 100};
    return error_text([&] { channel.all_gather("gather block.3", {&message, 1}); });
  }
};

// A caller that catches the failure may free the memory: MPI must no longer use it.
TEST_F(CancelledMpi, NoFailureLeavesACallWhileMpiMayStillWrite) {
  for (const int polls : {0, 1, 7, 100}) {
    fake = {};
    fake.polls_after_cancel = polls;
    const std::string error = gather();
    EXPECT_TRUE(contains(error, "rank 1 did not reach all_gather \"gather block.3\"")) << error;
    EXPECT_EQ(fake.written_after_cancel, 1) << polls;
    EXPECT_EQ(fake.data_pending, 0) << polls;
  }
}

TEST_F(CancelledMpi, AMessageThatNeverCompletesEndsTheProcessWithTheReason) {
  fake.polls_after_cancel = -1;
  EXPECT_EXIT(gather(), testing::ExitedWithCode(1),
              "rank 0 failed: rank 1 did not reach all_gather \"gather block.3\"");
}

}  // namespace
}  // namespace onefold
