// One channel over NCCL, and what the channels of a rank share.
//
// Calls return when their work is on the lane's stream. A thread of the rank watches that work:
// where NCCL reports an error, where work does not end within the timeout, or where another rank
// has failed, it ends all work of NCCL's, so that no stream waits for ever, and tells the other
// ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/call_record.h"
#include "comm/nccl.h"

namespace onefold {

class NcclState {
 public:
  NcclState(std::shared_ptr<Communicator> control, const NcclApi& api, bool library_sums);
  ~NcclState();

  const NcclApi& api;
  const std::shared_ptr<Communicator> control;
  const bool library_sums;

  bool failed() const { return failed_.load(); }
  std::string failure() const;
  [[noreturn]] void throw_failure() const;
  // Records the first failure, ignores later ones; ends all work and tells the other ranks.
  void fail(const std::string& why) noexcept;
  // The same of a failure that the others know.
  void end_work(const std::string& why) noexcept;

  // What one channel has under way.
  struct Watched {
    struct Call {
      std::string text;
      int64_t mark;
      std::chrono::steady_clock::time_point since;
    };
    std::string channel;
    NcclPort* port;
    RankMemory* memory;
    std::deque<Call> calls;
  };
  Watched& watch(std::string_view channel, NcclPort* port, RankMemory& memory);
  void unwatch(Watched& watched);
  void add_call(Watched& watched, std::string text);

 private:
  void run();
  bool record(const std::string& why) noexcept;  // false: there was a failure before
  void abort_ports() noexcept;
  std::string find_problem();
  std::string problem_of(Watched& watched);

  mutable std::mutex mutex_;  // of what follows
  std::atomic<bool> failed_{false};
  std::string failure_;
  std::list<Watched> watched_;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses the rest
};

class NcclChannel final : public Channel {
 public:
  // Of `group`, whose control plane is `control`.
  NcclChannel(std::shared_ptr<NcclState> state, Communicator& control, const RankGroup& group,
              RankMemory& memory, std::string_view name, void* scratch);
  ~NcclChannel() override;

 private:
  // Bytes [offset, offset + bytes) of the shards of a message; `place`: their offset in a section.
  struct Piece {
    size_t message;
    int64_t offset, bytes, place;
  };

  void run(const Call& call) override;
  void meet(const Call& call);
  void put_on_stream(const Call& call);
  void gather(std::span<const Message> messages, bool in_place);
  void reduce(std::span<const Message> messages, bool in_place);
  void reduce_round(std::span<const Message> messages, bool in_place,
                    std::span<const Piece> pieces);
  void library_reduce(std::span<const Message> messages, bool in_place);
  void exchange(const Call& call);
  void check(const char* problem);

  int after(int steps) const { return (rank() + steps) % ranks(); }
  int before(int steps) const { return (rank() + ranks() - steps) % ranks(); }
  int64_t section_bytes() const;

  const std::shared_ptr<NcclState> state_;
  const NcclApi& api_;
  RankMemory& memory_;
  const std::string name_;
  std::byte* const scratch_;
  const std::unique_ptr<Channel> meet_;  // of the control plane
  NcclPort* port_ = nullptr;
  NcclState::Watched* watched_ = nullptr;
  CallRecord record_;
  std::vector<const void*> sources_;
};

}  // namespace onefold
