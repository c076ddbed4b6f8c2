// Where ranks that are threads meet: one Meeting for each channel, and the group they belong to. A
// rank takes its seat with the call it makes, waits for the others, works directly on their memory,
// and waits until they are done with its own.
//
// Failing is as careful as working, because ranks read each other's memory. A rank that waits to
// meet may withdraw, so no rank can later believe that it was there. Once all have met, every one
// finishes its copies, which need nobody, and no rank leaves before that: memory that somebody
// still reads is not freed by an exception.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/call_record.h"

namespace onefold {

class Meeting;

// What all channels of a group share: the first failure, and who has left.
class LocalState {
 public:
  LocalState(int ranks, const CommOptions& options);
  ~LocalState();

  const int ranks;
  const CommOptions options;

  void join(int rank);
  void leave(int rank) noexcept;
  bool has_left(int rank) const { return left_[static_cast<size_t>(rank)].load(); }
  bool somebody_left() const { return departures_.load() > 0; }

  // The next channel of this rank; the first rank to open it makes it.
  Meeting& open(int rank, std::string_view name);

  // The first failure stays; all ranks wake.
  void fail(const std::string& why) noexcept;
  bool failed() const { return failed_.load(); }
  [[noreturn]] void throw_failure() const;

 private:
  void wake_all();

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
  std::vector<size_t> opened_;  // channels that each rank has opened
  std::vector<bool> joined_;
  std::vector<std::atomic<bool>> left_;
  std::atomic<int> departures_{0};
  std::atomic<bool> failed_{false};
  std::string failure_;
};

class Meeting {
 public:
  Meeting(LocalState& state, std::string_view name);

  const std::string& name() const { return name_; }

  // Collectives: sit down with a call, wait until all ranks sit with the same one, work, and wait
  // until all have done their work. Only between meet() and part() may a rank read peers.
  void meet(int rank, const Channel::Call& call);
  const Channel::Call& call(int rank) const { return seat(rank).call; }
  void part(int rank);

  // One message; each returns when it has been copied.
  void send(int rank, const Channel::Call& call);
  void receive(int rank, const Channel::Call& call);

  void wake();

 private:
  static constexpr int kNobody = -1, kTaken = -2, kRefused = -3;

  struct alignas(64) Seat {
    std::atomic<int64_t> arrived{0};                     // at how many barriers of this channel
    std::atomic<int> mail_to{kNobody};                   // the rank that a message waits for
    std::atomic<int> awaits{kNobody};                    // the rank that a message is awaited from
    std::chrono::steady_clock::time_point busy_until{};  // when this rank may yield again
    Channel::Call call{Collective::barrier, {}};
    // Guards the record against those who read it without having met: to describe a rank that is
    // missing.
    std::mutex mutex;
    CallRecord record;
    bool any = false, inside = false;
  };
  Seat& seat(int rank) { return seats_[static_cast<size_t>(rank)]; }
  const Seat& seat(int rank) const { return seats_[static_cast<size_t>(rank)]; }

  void sit(int rank, const Channel::Call& call);
  void rise(int rank);
  void compare_records(int rank);
  void refuse_crossed_messages(int rank);
  void refuse_crossed_collective(int rank, int peer);
  bool all_arrived(int64_t round) const { return arrivals_.load() >= round * state_.ranks; }
  int64_t arrive(int rank);
  bool withdraw(int rank, int64_t round);
  bool missing_rank_left(int64_t round) const;
  CallRecord record_of(int rank);
  std::string last_call(int rank);
  std::string absence(int rank, int64_t round);
  std::string absence_of_peer(int rank, int peer);
  [[noreturn]] void throw_failure(int rank);

  template <class Done>
  void wait(int rank, const Done& done, bool may_time_out);

  LocalState& state_;
  const std::string name_;
  std::vector<Seat> seats_;
  std::atomic<int64_t> arrivals_{0};  // of all ranks: barrier k is complete at k * ranks
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace onefold
