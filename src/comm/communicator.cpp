#include "comm/communicator.h"

#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "comm/rank_sum.h"

namespace onefold {
namespace {

class DryChannel final : public Channel {
 public:
  DryChannel(int rank, int ranks) : Channel(rank, ranks) {}

 private:
  void run(const Call&) override {}
};

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(int rank, int ranks, int64_t scratch_bytes, int host_ranks, int host_members)
      : Communicator(rank, ranks),
        scratch_bytes_(scratch_bytes),
        host_ranks_(host_ranks),
        host_members_(host_members) {}
  const char* transport() const override { return "dry"; }
  int64_t scratch_bytes() const override { return scratch_bytes_; }
  int64_t device_scratch_bytes() const override { return scratch_bytes_; }
  std::unique_ptr<Channel> open(std::string_view, void*) override {
    auto channel = std::make_unique<DryChannel>(rank(), ranks());
    channel->set_host_members(host_members_);
    return channel;
  }
  std::unique_ptr<Communicator> group(const RankGroup& members) override {
    const auto here =
        std::count_if(members.members.begin(), members.members.end(), [&](int member) {
          return host_ranks_ > 0 && member / host_ranks_ == rank() / host_ranks_;
        });
    const bool several = host_ranks_ > 0 && here < members.size();
    return std::make_unique<DryCommunicator>(members.index_of(rank()), members.size(),
                                             members.size() == 1 ? 0 : scratch_bytes_, 0,
                                             several ? static_cast<int>(here) : 0);
  }
  void abort(std::string_view) noexcept override {}

 private:
  const int64_t scratch_bytes_;
  const int host_ranks_, host_members_;
};

}  // namespace

int RankGroup::index_of(int rank) const {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::string RankGroup::text() const {
  std::vector<std::string> numbers;
  for (const int member : members) numbers.push_back(std::to_string(member));
  return fmt::format("{} group of rank{} {}", name, members.size() == 1 ? "" : "s",
                     join(numbers, ", "));
}

const char* collective_name(Collective collective) {
  static constexpr std::array<const char*, kCollectives> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "broadcast",
      "all_to_all", "send",           "receive",    "barrier"};
  return kNames[static_cast<size_t>(collective)];
}

void Channel::all_gather(std::string_view what, std::span<const Message> messages) {
  count_and_run({.collective = Collective::all_gather, .what = what, .messages = messages});
}

void Channel::reduce_scatter(std::string_view what, std::span<const Message> messages) {
  require_summable(messages);
  count_and_run({.collective = Collective::reduce_scatter, .what = what, .messages = messages});
}

void Channel::all_reduce(std::string_view what, std::span<const Message> messages) {
  require_summable(messages);
  count_and_run({.collective = Collective::all_reduce, .what = what, .messages = messages});
}

void Channel::broadcast(std::string_view what, int root, void* data, int64_t bytes) {
  require(root >= 0 && root < ranks_, "broadcast from rank {} of {}", root, ranks_);
  count_and_run({.collective = Collective::broadcast,
                 .what = what,
                 .peer = root,
                 .from = data,
                 .to = data,
                 .bytes = bytes});
}

void Channel::all_to_all(std::string_view what, const void* from, void* to, int64_t block_bytes) {
  require(from != to || from == nullptr, "all_to_all in place");
  count_and_run({.collective = Collective::all_to_all,
                 .what = what,
                 .from = from,
                 .to = to,
                 .bytes = block_bytes});
}

void Channel::send(std::string_view what, int to, const void* data, int64_t bytes) {
  require(to >= 0 && to < ranks_ && to != rank_, "rank {} sends to rank {} of {}", rank_, to,
          ranks_);
  count_and_run(
      {.collective = Collective::send, .what = what, .peer = to, .from = data, .bytes = bytes});
}

void Channel::receive(std::string_view what, int from, void* data, int64_t bytes) {
  require(from >= 0 && from < ranks_ && from != rank_, "rank {} receives from rank {} of {}", rank_,
          from, ranks_);
  count_and_run(
      {.collective = Collective::receive, .what = what, .peer = from, .to = data, .bytes = bytes});
}

void Channel::barrier(std::string_view what) {
  count_and_run({.collective = Collective::barrier, .what = what});
}

void Channel::count_and_run(const Call& call) {
  Traffic& traffic = traffic_[static_cast<size_t>(call.collective)];
  const double begin = now_seconds();
  run(call);
  traffic.seconds += now_seconds() - begin;
  ++traffic.calls;
  traffic.bytes_sent += bytes_sent(call);
}

// A broadcast counts at its root, which sends to each other rank.
int64_t Channel::bytes_sent(const Call& call) const {
  const int64_t others = ranks_ - 1;
  int64_t shards = 0;
  for (const Message& message : call.messages) shards += message.shard_bytes();
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return shards * others;
    case Collective::all_reduce:
      return 2 * shards * others;
    case Collective::broadcast:
      return call.peer == rank_ ? call.bytes * others : 0;
    case Collective::all_to_all:
      return call.bytes * others;
    case Collective::send:
      return call.bytes;
    case Collective::receive:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

std::unique_ptr<Channel> Communicator::open_on(RankMemory&, std::string_view, void*) {
  user_error(
      "ranks over {} exchange the host's memory alone: give each rank a card of its own (device "
      "cuda), or share one among ranks that are threads (--ranks)",
      transport());
}

std::unique_ptr<Communicator> Communicator::group(const RankGroup& members) {
  user_error("ranks over {} do not form groups yet (a {}): use ranks on the CPU", transport(),
             members.text());
}

std::unique_ptr<Communicator> make_dry_communicator(int ranks, int64_t scratch_bytes, int rank,
                                                    int host_ranks) {
  return std::make_unique<DryCommunicator>(rank, ranks, scratch_bytes, host_ranks,
                                           ranks > host_ranks ? host_ranks : 0);
}

}  // namespace onefold
