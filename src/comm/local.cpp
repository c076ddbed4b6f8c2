#include "comm/local.h"

#include <algorithm>
#include <exception>

#include "comm/byte_at.h"
#include "comm/rank_sum.h"
#include "comm/rendezvous.h"

namespace onefold {
namespace {

class LocalChannel final : public Channel {
 public:
  // `rank`: among all. Without `memory`: the host's.
  LocalChannel(int rank, const RankGroup& group, std::shared_ptr<LocalState> state,
               std::string_view name, RankMemory* memory = nullptr)
      : Channel(group.index_of(rank), group.size()),
        state_(std::move(state)),
        rendezvous_(state_->open(rank, name, group)),
        host_(ranks()),
        memory_(memory != nullptr ? *memory : host_),
        sources_(static_cast<size_t>(ranks())) {}

 private:
  void run(const Call& call) override {
    memory_.finish();  // what the others read or write is complete
    if (call.collective == Collective::send) return rendezvous_.send(rank(), call);
    if (call.collective == Collective::receive) return rendezvous_.receive(rank(), call, memory_);
    rendezvous_.begin_collective(rank(), call);
    // Copies of a card may fail. The others are reading this rank's memory: it stays to the end.
    std::exception_ptr failed;
    try {
      work(call);
      memory_.finish();
    } catch (const std::exception& error) {
      failed = std::current_exception();
      state_->fail(fmt::format("rank {} failed: {}", rendezvous_.named(rank()), error.what()));
    }
    rendezvous_.end_collective(rank());
    if (failed) std::rethrow_exception(failed);
  }

  void work(const Call& call) {
    switch (call.collective) {
      case Collective::all_gather:
        for (size_t m = 0; m < call.messages.size(); ++m) gather(call.messages[m], m);
        break;
      case Collective::reduce_scatter:
        for (size_t m = 0; m < call.messages.size(); ++m) reduce(call.messages[m], m);
        break;
      case Collective::all_reduce:
        for (size_t m = 0; m < call.messages.size(); ++m) reduce_for_all(call.messages[m], m);
        break;
      case Collective::broadcast:
        memory_.copy(peer_call(call.peer).from, call.to, call.bytes);
        break;
      case Collective::all_to_all:
        for_each_rank([&](int r) {
          memory_.copy(byte_at(peer_call(r).from, rank() * call.bytes),
                       byte_at(call.to, r * call.bytes), call.bytes);
        });
        break;
      case Collective::barrier:
        break;
      default:
        internal_error("{} is not a collective of threads", collective_name(call.collective));
    }
  }

  const Call& peer_call(int r) const { return rendezvous_.call(r); }

  // Starting from this rank, so that the ranks do not all read the same one at a time.
  template <class Work>
  void for_each_rank(const Work& work) const {
    for (int i = 0; i < ranks(); ++i) work((rank() + i) % ranks());
  }

  void gather(const Message& message, size_t m) {
    const int64_t bytes = message.shard_bytes();
    for_each_rank([&](int r) {
      memory_.copy(peer_call(r).messages[m].shard, byte_at(message.whole, r * bytes), bytes);
    });
  }

  // This rank's piece of rank r's `whole`, from byte `first` on; no other rank reads or writes it.
  std::byte* piece(int r, size_t m, int64_t first = 0) const {
    const Message& message = peer_call(r).messages[m];
    return byte_at(message.whole, rank() * message.shard_bytes() + first);
  }

  // dst = the sum over ranks of so many bytes of this rank's piece.
  void sum_pieces(const Message& message, size_t m, int64_t first, int64_t bytes, void* dst) {
    for (int r = 0; r < ranks(); ++r) sources_[static_cast<size_t>(r)] = piece(r, m, first);
    memory_.sum(message.dtype, sources_, dst, bytes / dtype_bytes(message.dtype));
  }

  void reduce(const Message& message, size_t m) {
    sum_pieces(message, m, 0, message.shard_bytes(), message.shard);
  }

  // Each block of the piece is summed and written to every rank: one barrier and a third of the
  // traffic less than a reduce-scatter followed by a gather.
  void reduce_for_all(const Message& message, size_t m) {
    const int64_t all = message.shard_bytes(), block = memory_.block_bytes();
    for (int64_t first = 0; first < all; first += block) {
      const int64_t bytes = std::min(block, all - first);
      std::byte* own = piece(rank(), m, first);
      sum_pieces(message, m, first, bytes, own);
      for_each_rank([&](int r) { memory_.copy(own, piece(r, m, first), bytes); });
    }
  }

  const std::shared_ptr<LocalState> state_;
  Rendezvous& rendezvous_;
  HostRankMemory host_;
  RankMemory& memory_;
  std::vector<const void*> sources_;  // the ranks' pieces; reused by later calls
};

// Of all ranks, or of a group of them.
class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(int rank, const RankGroup& group, std::shared_ptr<LocalState> state)
      : Communicator(group.index_of(rank), group.size(), state->options),
        state_(std::move(state)),
        group_(group),
        among_all_(rank) {}

  const char* transport() const override { return "threads"; }
  std::unique_ptr<Channel> open(std::string_view name, void*) override {
    return std::make_unique<LocalChannel>(among_all_, group_, state_, name);
  }
  std::unique_ptr<Channel> open_on(RankMemory& memory, std::string_view name, void*) override {
    return std::make_unique<LocalChannel>(among_all_, group_, state_, name, &memory);
  }
  std::unique_ptr<Communicator> group(const RankGroup& members) override {
    require(group_.name.empty() && members.index_of(among_all_) >= 0,
            "rank {} makes a {} that it is not in", among_all_, members.text());
    return std::make_unique<LocalCommunicator>(among_all_, members, state_);
  }
  std::string failure() const override { return state_->failure(); }
  void abort(std::string_view why) noexcept override {
    state_->fail(fmt::format("rank {} failed: {}", among_all_, why));
  }

 protected:
  const std::shared_ptr<LocalState> state_;

 private:
  const RankGroup group_;
  const int among_all_;
};

// A rank's own: while it lives the rank is there.
class JoinedCommunicator final : public LocalCommunicator {
 public:
  JoinedCommunicator(int rank, std::shared_ptr<LocalState> state)
      : LocalCommunicator(rank, state->all(), state) {
    state_->join(rank);
  }
  ~JoinedCommunicator() override { state_->leave(rank()); }
};

}  // namespace

LocalGroup::LocalGroup(int ranks, const CommOptions& options)
    : state_(std::make_shared<LocalState>(ranks, options)) {}

std::unique_ptr<Communicator> LocalGroup::join(int rank) {
  return std::make_unique<JoinedCommunicator>(rank, state_);
}

}  // namespace onefold
