// One channel over MPI, and what the channels of a process share.
//
// Messages go straight from and to the caller's memory; only pieces to be summed pass through the
// channel's scratch, in rounds: while one half of it is summed, the other is received into. A round
// may carry many messages, so a bucket of small slabs costs few round trips.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "comm/call_record.h"
#include "comm/mpi_api.h"
#include "comm/rank_sum.h"

namespace onefold {

// The first failure, and who has said goodbye. For all lanes' threads.
class MpiState {
 public:
  MpiState(const MpiApi& api, const CommOptions& options, const Place& place);

  const MpiApi& api;
  const CommOptions options;
  const int rank, ranks;
  const bool crowded;  // more ranks than cores

  void fail(const std::string& why);  // the first one stays
  bool failed() const { return failed_.load(); }
  std::string failure() const;
  [[noreturn]] void throw_failure();
  // Says why, and ends this process and through the launcher all others.
  [[noreturn]] void end_process(std::string_view why) const noexcept;

  void open();  // the port for goodbyes; all ranks at once
  void look_for_goodbyes();
  bool has_left(int r) const { return left_[static_cast<size_t>(r)].load(); }
  void say_goodbye();  // waits for everybody's, and closes all ports
  void abandon();      // instead of it: leaves MPI as it is
  void retire(MpiPort* port);

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string failure_;
  MpiPort* port_ = nullptr;
  std::vector<MpiPort*> ports_;                                 // to close
  std::unique_ptr<int> departing_ = std::make_unique<int>(-1);  // where the next goodbye arrives
  std::vector<std::atomic<bool>> left_;
  int departures_ = 0;
};

// Scratch that a channel of this many ranks needs: bounded, but for a cache line for each rank.
int64_t mpi_scratch_bytes(int ranks);

class MpiChannel final : public Channel {
 public:
  MpiChannel(MpiState& state, std::string_view name, void* scratch);
  ~MpiChannel() override;

  MpiPort* port() const { return port_; }  // for comparisons with MPI's own collectives

 private:
  // What every rank says about its call before data moves.
  struct Announcement {
    int16_t collective, dtype;
    int32_t peer;
    int64_t bytes, messages;
    uint64_t sizes, what_hash;
    char what[88];  // the beginning of it
  };
  static_assert(sizeof(Announcement) == 128);
  // Bytes [offset, offset + bytes) of the shards of a message; `place`, where they lie in a slot.
  struct Piece {
    size_t message;
    int64_t offset, bytes, place;
  };

  void run(const Call& call) override;
  void agree(const Call& call);
  void meet(const Announcement& own);
  void gather(std::span<const Message> messages);
  void reduce(std::span<const Message> messages, bool in_place);
  void broadcast(const Call& call);
  void exchange(const Call& call);
  void send_message(const Call& call);
  void receive_message(const Call& call);

  static Announcement announce(const CallRecord& record);
  static CallRecord understand(const Announcement& announcement);
  static bool same(const Announcement& a, const Announcement& b);

  int after(int steps) const { return (rank() + steps) % ranks(); }
  int before(int steps) const { return (rank() + ranks() - steps) % ranks(); }
  int64_t slot_bytes() const;
  // The next pieces of the messages, from where the last round ended; none when all are done.
  std::vector<Piece> next_round(std::span<const Message> messages, int64_t bytes);
  void sum_round(std::span<const Message> messages, bool in_place, std::span<const Piece> pieces,
                 const std::byte* half);

  void send(int group, const void* data, int64_t bytes, int to, int tag);
  void receive(int group, void* data, int64_t bytes, int from, int tag);
  void wait(int group);
  bool waits_for_one_who_left(int group) const;
  void give_up(int group);
  // Returns when MPI does not use the memory of any message any more; ends the process where it
  // does not let go of it.
  void cancel_all();

  MpiState& state_;
  const MpiApi& api_;
  const std::string name_;
  std::byte* const scratch_;
  MpiPort* port_;
  std::vector<int> peers_[kMpiGroups];  // of each message under way, for naming who is missing
  std::vector<Announcement> announcements_;
  RankSum sum_;
  size_t next_message_ = 0;
  int64_t next_offset_ = 0;
  CallRecord record_;
  CallRecord last_;  // the last one that all ranks came to
};

}  // namespace onefold
