// Synchronises ranks that are threads: one Rendezvous for each channel, and the group that the
// ranks belong to. A rank publishes its call in its slot, waits until all ranks have published
// theirs, works directly on their memory, and waits until they are done with its own.
//
// Ranks read each other's memory, so a failure must not free memory that a peer may still read. A
// rank that waits for the others to arrive may withdraw its arrival; then no rank counts it as
// present. Once all have arrived with the same call, every rank finishes its copies, which depend
// on no other rank, and none returns or throws before all have finished.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/waiting.h"
#include "comm/call_record.h"

namespace onefold {

class Rendezvous;

// What all channels of a group share: the first failure, and which ranks have left.
class LocalState {
 public:
  LocalState(int ranks, const CommOptions& options);
  ~LocalState();

  const int ranks;
  const CommOptions options;

  void join(int rank);
  void leave(int rank) noexcept;
  bool has_left(int rank) const { return left_[static_cast<size_t>(rank)].load(); }
  bool any_left() const { return left_count_.load() > 0; }

  // How many calls a rank is in, on all of its lanes.
  std::atomic<int>& calls(int rank) { return calls_[static_cast<size_t>(rank)]; }
  // Ranks that wait for no other: their own threads, those that have joined, are neither in a call
  // nor wait for a lane that is in one. Where all others wait, they wait for these.
  std::vector<int> not_waiting() const;

  // The next channel of this rank in a group; the first rank that opens it creates it.
  Rendezvous& open(int rank, std::string_view name, const RankGroup& group);
  // Of all ranks.
  const RankGroup& all() const { return all_; }

  // Records the first failure, ignores later ones, and wakes all ranks.
  void fail(const std::string& why) noexcept;
  bool failed() const { return failed_.load(); }
  [[noreturn]] void throw_failure() const;
  std::string failure() const;

 private:
  void wake_all();

  struct Line {
    std::vector<std::unique_ptr<Rendezvous>> channels;
    std::map<int, size_t> opened;  // channels that each rank has opened
  };

  const RankGroup all_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, Line> lines_;  // by name and members
  std::vector<Waiting::Count> own_threads_;                         // of ranks that have joined
  std::vector<std::atomic<int>> calls_;
  std::vector<std::atomic<bool>> left_;
  std::atomic<int> left_count_{0};
  std::atomic<bool> failed_{false};
  std::string failure_;
};

class Rendezvous {
 public:
  Rendezvous(LocalState& state, std::string_view name, const RankGroup& group);

  const std::string& name() const { return name_; }
  // The number among all ranks of one of the group, which all others here are.
  int named(int rank) const { return group_.members[static_cast<size_t>(rank)]; }

  // begin_collective() publishes this rank's call and returns when all ranks have published the
  // same one; end_collective() returns when all ranks have called it. Only in between may a rank
  // use call() and read or write the memory of its peers.
  void begin_collective(int rank, const Channel::Call& call);
  const Channel::Call& call(int rank) const { return slot(rank).call; }
  void end_collective(int rank);

  // One message; each returns when it has been copied, by the receiver's memory.
  void send(int rank, const Channel::Call& call);
  void receive(int rank, const Channel::Call& call, RankMemory& memory);

  void wake();

 private:
  // Values of Slot::sends_to besides ranks: no message; one that is being copied; one whose
  // receiver has found a mismatch.
  static constexpr int kNoRank = -1, kTaken = -2, kRefused = -3;

  struct alignas(64) Slot {
    std::atomic<int64_t> arrived{0};          // barriers of this channel that the rank arrived at
    std::atomic<int> sends_to{kNoRank};       // destination of the message that the rank offers
    std::atomic<int> receives_from{kNoRank};  // source of the message that the rank waits for
    std::chrono::steady_clock::time_point no_yield_until{};  // until then, waits sleep at once
    Channel::Call call{Collective::barrier, {}};
    // Guards what follows against ranks that read it without a barrier, to describe this rank in an
    // error message.
    std::mutex mutex;
    CallRecord record;
    bool has_record = false, in_call = false;
  };
  Slot& slot(int rank) { return slots_[static_cast<size_t>(rank)]; }
  const Slot& slot(int rank) const { return slots_[static_cast<size_t>(rank)]; }

  void enter_call(int rank, const Channel::Call& call);
  void exit_call(int rank);
  void compare_records(int rank);
  void detect_crossed_messages(int rank);
  void detect_crossed_call(int rank, int peer);
  bool all_arrived(int64_t round) const { return arrivals_.load() >= round * ranks(); }
  int ranks() const { return group_.size(); }
  bool has_left(int rank) const { return state_.has_left(named(rank)); }
  std::string disagreement_of(int rank, int other);
  std::string channel_text() const;
  int64_t arrive(int rank);
  bool withdraw(int rank, int64_t round);
  bool missing_rank_left(int64_t round) const;
  CallRecord record_of(int rank);
  std::string last_call(int rank);
  std::string missing_at_barrier(int rank, int64_t round);
  std::string late_text(int rank, std::vector<int> late, std::span<const int> waiting);
  std::string missing_peer(int rank, int peer);
  [[noreturn]] void throw_failure(int rank);
  bool take_message(int from, int rank, const Channel::Call& call, RankMemory& memory);

  template <class Done>
  void wait(int rank, const Done& done, bool may_time_out);

  LocalState& state_;
  const std::string name_;
  const RankGroup group_;
  std::vector<Slot> slots_;
  std::atomic<int64_t> arrivals_{0};  // of all ranks: barrier k is complete at k * ranks
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace onefold
