// Ranks exchange data through a communicator: between threads of this process (local.h), between
// processes over MPI (mpi.h), between cards over NCCL (nccl.h), or not at all (dry: it only
// counts). A rank opens one channel for each lane; on a channel every rank makes the same calls in
// the same order, and each call blocks until this rank's part of it is done, or (NCCL) is on the
// lane's stream. Overlap comes from lanes, never from here.
//
// Sums have a fixed order: rank 0's value, plus rank 1's, plus rank 2's, ... element by element, in
// the elements' own type (f32 or f64). A reduce-scatter is an exchange of pieces and that local
// sum: the volume of a ring, with bits that do not depend on timing, on the transport, or on how
// calls are joined into buckets.
//
// Every call carries a description, `what` ("gather block.3, step 17"). If the calls of two ranks
// differ, all ranks stop with an error that names both; if a rank does not reach a call, the error
// names it and the call in which the others wait.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/rank_memory.h"
#include "tensor/tensor.h"

namespace onefold {

enum class Collective : uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  all_to_all,
  send,
  receive,
  barrier
};
inline constexpr int kCollectives = 8;
const char* collective_name(Collective collective);

// One slab of a gather or a reduction. A call may carry many: that is what a bucket is, and it
// costs no copy. `whole` holds ranks() shards in rank order; `shard` is this rank's, which may lie
// at its place inside `whole` (then nothing is copied there). Both are aligned to their elements.
// Pointers are null on the dry communicator.
struct Message {
  void* whole = nullptr;
  void* shard = nullptr;
  int64_t shard_elems = 0;
  DType dtype = DType::f32;

  int64_t shard_bytes() const { return shard_elems * dtype_bytes(dtype); }
};

// What one rank has sent through a channel.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes_sent = 0;  // to other ranks; what a rank keeps for itself is not counted
  double seconds = 0;      // from the call to its end, waiting for others included
};
using TrafficTable = std::array<Traffic, kCollectives>;

// Another rank has failed, left or hung, or has made a different call: this rank can only stop. The
// message names ranks and calls.
class PeerError : public UserError {
 public:
  using UserError::UserError;
};

// All ranks have found the same error and each of them throws it, so no rank is left waiting. It is
// printed once.
class AgreedError : public UserError {
 public:
  using UserError::UserError;
};

class Channel {
 public:
  virtual ~Channel() = default;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Each message, of any type: whole = every rank's shard.
  void all_gather(std::string_view what, std::span<const Message> messages);
  // Each message, of f32 or f64: shard = this rank's piece of the sum over ranks of whole. `whole`
  // is only read, but for this rank's piece when shard lies there.
  void reduce_scatter(std::string_view what, std::span<const Message> messages);
  // Each message, of f32 or f64: whole = the sum over ranks of whole; `shard` is not used.
  void all_reduce(std::string_view what, std::span<const Message> messages);
  void broadcast(std::string_view what, int root, void* data, int64_t bytes);
  // Block r of `from` goes to rank r; block r of `to` comes from rank r.
  void all_to_all(std::string_view what, const void* from, void* to, int64_t block_bytes);
  void send(std::string_view what, int to, const void* data, int64_t bytes);
  void receive(std::string_view what, int from, void* data, int64_t bytes);
  void barrier(std::string_view what);

  const TrafficTable& traffic() const { return traffic_; }

  // For plans: of ranks on several hosts, how many are on this one's; 0: all are on one.
  int host_members() const { return host_members_; }
  void set_host_members(int members) { host_members_ = members; }

  // One call, as it is passed to implementations.
  struct Call {
    Collective collective;
    std::string_view what;
    std::span<const Message> messages = {};  // gathers and reductions
    int peer = -1;               // broadcast: the root; send and receive: the other side
    const void* from = nullptr;  // broadcast (root), all_to_all, send
    void* to = nullptr;          // broadcast, all_to_all, receive
    int64_t bytes = 0;           // of a block
  };

 protected:
  Channel(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  virtual void run(const Call& call) = 0;

 private:
  void count_and_run(const Call& call);
  int64_t bytes_sent(const Call& call) const;

  const int rank_, ranks_;
  int host_members_ = 0;
  TrafficTable traffic_{};
};

struct CommOptions {
  double timeout_seconds = 600;  // how long a rank waits for the others before it fails
  bool check = true;             // compare what ranks call (free for threads; a message over MPI)
};

// A rank among some that share a machine.
struct Place {
  int rank = 0, ranks = 1;
};

// Some of a communicator's ranks, such as those along one axis of a mesh.
struct RankGroup {
  std::string name;          // for errors and traces: "tensor"
  std::vector<int> members;  // by their numbers there, in order

  int size() const { return static_cast<int>(members.size()); }
  int index_of(int rank) const;  // -1: it is not a member
  std::string text() const;      // "tensor group of ranks 2, 3"
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  virtual const char* transport() const = 0;  // "threads", "mpi", "nccl", "dry"
  const CommOptions& options() const { return options_; }

  // Among the ranks on the same machine, whose memory they share.
  virtual Place host() const { return {rank_, ranks_}; }
  // Among those that may use the same cores: where to bind this rank, with bind_rank(place().rank,
  // place().ranks). A rank to which the launcher has given cores of its own is the only one.
  virtual Place place() const { return {rank_, ranks_}; }

  // Bytes of scratch memory that each channel works with, aligned to 64; the caller owns it, so
  // that the ledger has it.
  virtual int64_t scratch_bytes() const { return 0; }
  // Opens a channel: every rank opens the same ones in the same order. One that sums nothing needs
  // no scratch.
  virtual std::unique_ptr<Channel> open(std::string_view name, void* scratch) = 0;

  // The same for memory that the host does not reach: a device's, in the order of one of its lanes.
  // UserError where this transport cannot.
  virtual int64_t device_scratch_bytes() const { return 0; }
  virtual std::unique_ptr<Channel> open_on(RankMemory& memory, std::string_view name,
                                           void* scratch);
  // A communicator of the members alone, of which this rank is one: there they are ranks 0, 1, ...
  // and errors name them by their numbers here. Each rank makes groups of the same names in the
  // same order, is in one of each name, and opens the same channels of them; a failure ends the
  // calls of all ranks. The group must not outlive this communicator.
  virtual std::unique_ptr<Communicator> group(const RankGroup& members);

  // What has ended all calls, here or on another rank; empty: nothing has. A call that waits on a
  // stream throws nothing: whoever reads its result asks here first.
  virtual std::string failure() const { return {}; }

  // Ends all ranks because this one has failed: every rank that waits for it, now or later, throws
  // a PeerError that repeats `why`. Over MPI the process ends here, with the exit code 1.
  virtual void abort(std::string_view why) noexcept = 0;

 protected:
  Communicator(int rank, int ranks, const CommOptions& options = {})
      : rank_(rank), ranks_(ranks), options_(options) {}

 private:
  const int rank_, ranks_;
  const CommOptions options_;
};

// One of `ranks`, on a channel that moves nothing and only counts: for plans, and for runs of one
// rank. `scratch_bytes` is what the transport it stands for would ask for; `host_ranks`: so many
// successive ranks share a host (0: all do).
std::unique_ptr<Communicator> make_dry_communicator(int ranks, int64_t scratch_bytes = 0,
                                                    int rank = 0, int host_ranks = 0);

}  // namespace onefold
