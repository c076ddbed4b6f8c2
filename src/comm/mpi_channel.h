// One channel over MPI, and what the channels of a process share.
//
// Messages go straight from and to the caller's memory; only pieces to be summed pass through the
// channel's scratch, in rounds: while one half of it is summed, the other is received into. A round
// may carry many messages, so a bucket of small slabs costs few round trips. With
// CommOptions::check, every rank first sends the others a header that describes its call, so that
// calls that differ are found before data moves.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/waiting.h"
#include "comm/call_record.h"
#include "comm/mpi_api.h"
#include "comm/rank_sum.h"

namespace onefold {

// What the channels of a process share: the first failure, and which ranks have left or wait. Used
// by the threads of all lanes.
//
// Where ranks wait for each other, a rank whose wait was too long asks all others whether they
// wait. Who waits looks for such questions meanwhile, and answers; so one that does not answer
// hangs, or computes.
class MpiState {
 public:
  MpiState(const MpiApi& api, const CommOptions& options, const Place& place);

  const MpiApi& api;
  const CommOptions options;
  const int rank, ranks;
  const bool oversubscribed;  // more ranks than cores

  void fail(const std::string& why);  // records the first failure, ignores later ones
  bool failed() const { return failed_.load(); }
  std::string failure() const;
  [[noreturn]] void throw_failure();
  // Prints `why`, and ends this process and, through the launcher, all others.
  [[noreturn]] void end_process(std::string_view why) const noexcept;

  // Opens the port for the messages between these; all ranks call it at once.
  void open();
  // Receives those that have arrived, and answers questions. A rank that has sent a closing message
  // has left.
  void poll_messages();
  // Ranks that wait for no other, as they say, or because they do not answer. All threads that ask
  // get the first answer.
  std::vector<int> not_waiting();
  // While one lives, a thread of this process is in a call.
  class InCall {
   public:
    explicit InCall(MpiState& state) : state_(state) { ++state_.calls_; }
    ~InCall() { --state_.calls_; }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    MpiState& state_;
    const Waiting waiting_;
  };
  bool has_left(int r) const { return left_[static_cast<size_t>(r)].load(); }
  // Sends a closing message to every rank, waits for theirs, and closes all ports.
  void close();
  // After a failure, instead of close(): leaves MPI as it is.
  void abandon();
  // Hands over a channel's port, which close() closes.
  void retire(MpiPort* port);

 private:
  enum class About : int32_t { closing, question, waits, computes };
  struct Message {
    int32_t rank;
    About about;
  };
  void receive_next();
  void send(int to, About about);
  void take(const Message& message);
  bool waits() const { return *own_thread_ > 0 && calls_ > 0; }

  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string failure_;
  MpiPort* port_ = nullptr;
  std::vector<MpiPort*> ports_;  // to close
  // Where the next message is received, and those that are sent, which MPI may read until the end.
  std::unique_ptr<Message> next_ = std::make_unique<Message>();
  std::unique_ptr<std::deque<Message>> sent_ = std::make_unique<std::deque<Message>>();
  std::vector<std::atomic<bool>> left_;
  int left_count_ = 0;
  // Of the thread that joins, which is the rank's own.
  const Waiting::Count own_thread_ = Waiting::of_this_thread();
  std::atomic<int> calls_{0};
  std::mutex asking_;
  std::vector<std::atomic<bool>> answered_, waiting_;  // by rank
  std::optional<std::vector<int>> not_waiting_;        // what they have said
};

// Scratch that a channel of this many ranks needs: constant, except that each rank takes at least a
// cache line in each half.
int64_t mpi_scratch_bytes(int ranks);

class MpiChannel final : public Channel {
 public:
  // Of a group: all ranks open the channels of theirs together, over one port, on which each group
  // has messages among its own members alone.
  MpiChannel(MpiState& state, std::string_view name, void* scratch, const RankGroup& group);
  ~MpiChannel() override;

  MpiPort* port() const { return port_; }  // for comparisons with MPI's own collectives

 private:
  // Describes a rank's call to the others.
  struct CallHeader {
    int16_t collective, dtype;
    int32_t peer;
    int64_t bytes, messages;
    uint64_t sizes, what_hash;
    char what[88];  // cut to this length
  };
  static_assert(sizeof(CallHeader) == 128);
  // Bytes [offset, offset + bytes) of the shards of a message; `place`: their offset in a section.
  struct Piece {
    size_t message;
    int64_t offset, bytes, place;
  };

  void run(const Call& call) override;
  void exchange_headers(const CallHeader& own);
  void gather(std::span<const Message> messages);
  void reduce(std::span<const Message> messages, bool in_place);
  void broadcast(const Call& call);
  void exchange(const Call& call);
  void send_message(const Call& call);
  void receive_message(const Call& call);

  static CallHeader encode(const CallRecord& record);
  static CallRecord decode(const CallHeader& header);
  static bool same(const CallHeader& a, const CallHeader& b);

  int after(int steps) const { return (rank() + steps) % ranks(); }
  int before(int steps) const { return (rank() + ranks() - steps) % ranks(); }
  int64_t section_bytes() const;
  // The next pieces of the messages, from where the last round ended; none when all are done.
  std::vector<Piece> next_round(std::span<const Message> messages, int64_t bytes);
  void sum_round(std::span<const Message> messages, bool in_place, std::span<const Piece> pieces,
                 const std::byte* half);

  // The number among all ranks of one of the group.
  int named(int rank) const { return group_.members[static_cast<size_t>(rank)]; }

  void send(int group, const void* data, int64_t bytes, int to, int tag);
  void receive(int group, void* data, int64_t bytes, int from, int tag);
  void wait(int group);
  bool waits_for_left_rank(int group) const;
  void fail_missing(int group);
  // Cancels all messages and returns when MPI no longer uses the memory of any of them. Ends the
  // process where that does not happen within kCancelSeconds.
  void cancel_all();

  MpiState& state_;
  const MpiApi& api_;
  const std::string name_;
  const RankGroup group_;
  std::byte* const scratch_;
  MpiPort* port_;
  std::vector<int> peers_[kMpiGroups];  // of each message in flight, to name missing ranks
  std::vector<CallHeader> headers_;
  RankSum sum_;
  size_t next_message_ = 0;
  int64_t next_offset_ = 0;
  CallRecord record_;
  CallRecord last_;  // of the call before, which this rank has completed
};

}  // namespace onefold
