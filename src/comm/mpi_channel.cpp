#include "comm/mpi_channel.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "base/say.h"
#include "base/thread_pool.h"
#include "kernels/host_memory.h"

namespace onefold {
namespace {

using Clock = std::chrono::steady_clock;

enum Tag : int { kAnnounce, kData, kMessageAnnounce, kMessage, kGoodbye };
// Groups 0 and 1 carry data in turn, 2 what is said about it.
constexpr int kSaid = 2;

constexpr int64_t kScratchBytes = int64_t{8} << 20;
constexpr int64_t kLine = 64;
// A message: large enough to be quick, small enough to count in an int and to show progress.
constexpr int64_t kMessageBytes = int64_t{16} << 20;
constexpr double kCancelSeconds = 1;
constexpr double kGrace = 0.3;  // seconds for messages that a goodbye may have overtaken
// Messages under way at once, to and from each rank, at most.
constexpr size_t kPiecesPerRound = 64;

const std::byte* at(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* at(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }

// How to wait where somebody must keep calling MPI for data to move: at first without a pause, then
// offering the core while that is cheap, and asleep for moments when it is not (see meeting.cpp) or
// when nothing has come for long.
class Patience {
 public:
  Patience(double seconds, Clock::duration spin)
      : begin_(Clock::now()), now_(begin_), seconds_(seconds), spin_(spin) {}

  void pause() {
    const auto waited = now_ - begin_;
    const bool spins = waited < spin_;
    const bool sleeps = waited > kLong || now_ < busy_until_;
    if (!spins && sleeps)
      std::this_thread::sleep_for(std::chrono::microseconds(waited > kVeryLong ? 500 : 20));
    else if (!spins)
      std::this_thread::yield();
    const auto before = std::exchange(now_, Clock::now());
    if (!sleeps && now_ - before > kSlice) busy_until_ = now_ + kSoon;
  }
  bool over() const { return std::chrono::duration<double>(now_ - begin_).count() > seconds_; }
  bool long_enough() const { return now_ - begin_ > kLong; }  // to look for other causes

 private:
  static constexpr auto kLong = std::chrono::milliseconds(10);
  static constexpr auto kVeryLong = std::chrono::seconds(1);
  static constexpr auto kSlice = std::chrono::microseconds(300);
  static constexpr auto kSoon = std::chrono::milliseconds(100);
  static thread_local Clock::time_point busy_until_;

  const Clock::time_point begin_;
  Clock::time_point now_;
  const double seconds_;
  const Clock::duration spin_;
};
thread_local Clock::time_point Patience::busy_until_{};

}  // namespace

// ---- What the channels of a process share

MpiState::MpiState(const MpiApi& api, const CommOptions& options, const Place& place)
    : api(api),
      options(options),
      rank(api.rank()),
      ranks(api.ranks()),
      crowded(place.ranks > available_cores()),
      left_(static_cast<size_t>(ranks)) {}

void MpiState::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failed_.load()) return;
  failure_ = why;
  failed_.store(true);
}

std::string MpiState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void MpiState::throw_failure() { throw PeerError(failure()); }

void MpiState::end_process(std::string_view why) const noexcept {
  constexpr int kExitCode = 1;
  constexpr auto kAnswerWait = std::chrono::seconds(4);
  std::fflush(stdout);
  say("rank {} failed: {}\n", rank, why);
  // Ending all takes the launcher's answer. Where that does not come, leaving does as well: the
  // launcher ends the others when it sees one go.
  try {
    std::thread([kAnswerWait] {
      std::this_thread::sleep_for(kAnswerWait);
      std::_Exit(kExitCode);
    }).detach();
  } catch (const std::system_error&) {
    std::_Exit(kExitCode);
  }
  api.end_all(kExitCode);
  std::_Exit(kExitCode);
}

void MpiState::open() {
  port_ = api.open();
  ports_.push_back(port_);
  while (api.poll(port_, 0) == 0) std::this_thread::yield();
  if (ranks > 1) api.receive(port_, 0, departing_.get(), sizeof(int), kMpiAnyRank, kGoodbye);
}

void MpiState::retire(MpiPort* port) {
  const std::lock_guard lock(mutex_);
  ports_.push_back(port);
}

void MpiState::look_for_goodbyes() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || departures_ == ranks - 1) return;
  while (api.poll(port_, 0) == 1) {
    left_[static_cast<size_t>(*departing_)].store(true);
    if (++departures_ == ranks - 1) return;
    api.receive(port_, 0, departing_.get(), sizeof(int), kMpiAnyRank, kGoodbye);
  }
}

void MpiState::say_goodbye() {
  for (int r = 0; r < ranks; ++r)
    if (r != rank) api.send(port_, 1, &rank, sizeof(rank), r, kGoodbye);
  Patience patience(0, {});
  while (api.poll(port_, 1) == 0 || departures_ < ranks - 1) {
    look_for_goodbyes();
    patience.pause();
  }
  for (MpiPort* port : ports_) api.close(port);
}

// A goodbye may still arrive: what it is written to stays for good.
void MpiState::abandon() { static_cast<void>(departing_.release()); }

int64_t mpi_scratch_bytes(int ranks) {
  if (ranks == 1) return 0;
  return std::max(kScratchBytes, 2 * kLine * static_cast<int64_t>(ranks));
}

// ---- Opening and closing

MpiChannel::MpiChannel(MpiState& state, std::string_view name, void* scratch)
    : Channel(state.rank, state.ranks),
      state_(state),
      api_(state.api),
      name_(name),
      scratch_(static_cast<std::byte*>(scratch)),
      port_(api_.open()),
      announcements_(static_cast<size_t>(state.ranks)),
      sum_(state.ranks) {
  const Call call{Collective::barrier, name_};
  record_.assign(call);
  record_.what = fmt::format("open channel {}", name_);
  wait(0);
  meet(announce(record_));
}

// The port is closed by all ranks together, when they part.
MpiChannel::~MpiChannel() { state_.retire(port_); }

// ---- Messages and waiting

void MpiChannel::send(int group, const void* data, int64_t bytes, int to, int tag) {
  api_.send(port_, group, data, bytes, to, tag);
  peers_[group].push_back(to);
}

void MpiChannel::receive(int group, void* data, int64_t bytes, int from, int tag) {
  api_.receive(port_, group, data, bytes, from, tag);
  peers_[group].push_back(from);
}

void MpiChannel::wait(int group) {
  // Ranks come when they come; but once they are here, data moves as long as we poll.
  const auto spin = std::chrono::microseconds(group == kSaid ? 50 : 2000);
  Patience patience(state_.options.timeout_seconds, state_.crowded ? Clock::duration{} : spin);
  std::optional<Patience> left;
  for (int status = 0; (status = api_.poll(port_, group)) != 1; patience.pause()) {
    if (status < 0)
      state_.fail(fmt::format("{} on channel \"{}\" of rank {} failed: {}", record_.text(), name_,
                              rank(), api_.error(port_)));
    if (patience.long_enough()) state_.look_for_goodbyes();
    // What it sent before it left may arrive after its goodbye: keep polling for a while. The pause
    // comes last, so that a poll follows it: the while may have passed without this rank running.
    if (!patience.long_enough() || !waits_for_one_who_left(group))
      left.reset();
    else if (!left)
      left.emplace(kGrace, spin);
    if (patience.over() || (left && left->over())) give_up(group);
    if (left) left->pause();
    if (!state_.failed()) continue;
    cancel_all();
    state_.throw_failure();
  }
  peers_[group].clear();
}

// The caller's memory goes away with the exception that follows. MPI promises that a cancelled
// message ends, but not every library keeps that for one that a hanging rank has begun.
void MpiChannel::cancel_all() {
  for (int g = 0; g < kMpiGroups; ++g) api_.cancel(port_, g);
  Patience patience(kCancelSeconds, {});
  for (int g = 0; g < kMpiGroups; ++g) {
    for (int status = 0; (status = api_.poll(port_, g)) != 1; patience.pause()) {
      if (status < 0) api_.cancel(port_, g);
      if (patience.over()) state_.end_process(state_.failure());
    }
    peers_[g].clear();
  }
}

bool MpiChannel::waits_for_one_who_left(int group) const {
  for (size_t i = 0; i < peers_[group].size(); ++i)
    if (state_.has_left(peers_[group][i]) && api_.is_pending(port_, group, static_cast<int>(i)))
      return true;
  return false;
}

// Messages of others may be under way too, but a rank that is there answers ours: who has not is
// missing.
void MpiChannel::give_up(int group) {
  std::vector<int> left, late;
  for (int r = 0; r < ranks(); ++r) {
    bool pending = false;
    for (size_t i = 0; i < peers_[group].size(); ++i)
      pending =
          pending || (peers_[group][i] == r && api_.is_pending(port_, group, static_cast<int>(i)));
    if (pending) (state_.has_left(r) ? left : late).push_back(r);
  }
  state_.fail(absence_text(left.empty() ? late : left, record_.text(), name_,
                           left.empty() ? state_.options.timeout_seconds : -1, {{rank()}},
                           "the last call there was " + last_.text()));
}

// ---- Saying what comes

MpiChannel::Announcement MpiChannel::announce(const CallRecord& record) {
  Announcement a{static_cast<int16_t>(record.collective),
                 static_cast<int16_t>(record.dtype),
                 record.peer,
                 record.bytes,
                 record.messages,
                 record.sizes,
                 hash_bytes(record.what.data(), record.what.size()),
                 {}};
  record.what.copy(a.what, sizeof(a.what) - 1);
  return a;
}

CallRecord MpiChannel::understand(const Announcement& a) {
  CallRecord record;
  record.collective = static_cast<Collective>(a.collective);
  record.dtype = static_cast<DType>(a.dtype);
  record.peer = a.peer;
  record.bytes = a.bytes;
  record.messages = a.messages;
  record.sizes = a.sizes;
  record.what = a.what;
  return record;
}

bool MpiChannel::same(const Announcement& a, const Announcement& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Everybody hears everybody, so that all find the same disagreement, and know who is missing.
void MpiChannel::meet(const Announcement& own) {
  announcements_[static_cast<size_t>(rank())] = own;
  for (int i = 1; i < ranks(); ++i) {
    receive(kSaid, &announcements_[static_cast<size_t>(before(i))], sizeof(own), before(i),
            kAnnounce);
    send(kSaid, &announcements_[static_cast<size_t>(rank())], sizeof(own), after(i), kAnnounce);
  }
  wait(kSaid);
  for (int r = 1; r < ranks(); ++r) {
    const auto& other = announcements_[static_cast<size_t>(r)];
    if (same(other, announcements_[0])) continue;
    state_.fail(disagreement(0, understand(announcements_[0]), r, understand(other)));
    state_.throw_failure();
  }
}

void MpiChannel::run(const Call& call) {
  if (state_.failed()) state_.throw_failure();
  last_ = record_;  // whoever comes here is done with it
  record_.assign(call);
  if (call.collective == Collective::send) return send_message(call);
  if (call.collective == Collective::receive) return receive_message(call);
  if (state_.options.check || call.collective == Collective::barrier) meet(announce(record_));
  switch (call.collective) {
    case Collective::all_gather:
      return gather(call.messages);
    case Collective::reduce_scatter:
      return reduce(call.messages, false);
    case Collective::all_reduce:
      reduce(call.messages, true);
      return gather(call.messages);
    case Collective::broadcast:
      return broadcast(call);
    case Collective::all_to_all:
      return exchange(call);
    default:
      return;
  }
}

// ---- Moving data

std::vector<MpiChannel::Piece> MpiChannel::next_round(std::span<const Message> messages,
                                                      int64_t bytes) {
  std::vector<Piece> pieces;
  int64_t place = 0;
  while (next_message_ < messages.size() && pieces.size() < kPiecesPerRound) {
    const int64_t left = messages[next_message_].shard_bytes() - next_offset_;
    const int64_t count = std::min(left, bytes - place);
    if (count > 0) pieces.push_back({next_message_, next_offset_, count, place});
    place += (count + kLine - 1) / kLine * kLine;
    next_offset_ += count;
    if (count == left) {
      ++next_message_;
      next_offset_ = 0;
    }
    if (place >= bytes) break;
  }
  return pieces;
}

void MpiChannel::gather(std::span<const Message> messages) {
  const bool in_place = record_.collective == Collective::all_reduce;
  const auto shard_of = [&](const Message& message) -> void* {
    return in_place ? at(message.whole, rank() * message.shard_bytes()) : message.shard;
  };
  next_message_ = 0;
  for (int group = 0;; group ^= 1) {
    const std::vector<Piece> pieces = next_round(messages, kMessageBytes);
    wait(group);  // for the round before the last
    if (pieces.empty()) break;
    for (int i = 1; i < ranks(); ++i)
      for (const Piece& piece : pieces) {
        const Message& message = messages[piece.message];
        receive(group, at(message.whole, before(i) * message.shard_bytes() + piece.offset),
                piece.bytes, before(i), kData);
        send(group, at(shard_of(message), piece.offset), piece.bytes, after(i), kData);
      }
  }
  wait(0);
  wait(1);
  for (const Message& message : messages) {
    void* place = at(message.whole, rank() * message.shard_bytes());
    copy_bytes(shard_of(message), place, message.shard_bytes());
  }
}

// What each other rank has of a half of the scratch. A rank alone sums nothing, but still copies.
int64_t MpiChannel::slot_bytes() const {
  if (ranks() == 1) return kMessageBytes;
  return mpi_scratch_bytes(ranks()) / 2 / (ranks() - 1) / kLine * kLine;
}

// Into the messages' shards, or into their places in `whole`.
void MpiChannel::reduce(std::span<const Message> messages, bool in_place) {
  const int64_t half_bytes = mpi_scratch_bytes(ranks()) / 2, slot = slot_bytes();
  next_message_ = 0;
  std::vector<Piece> rounds[2];
  const auto half = [&](int group) { return scratch_ + group * half_bytes; };
  for (int group = 0;; group ^= 1) {
    rounds[group] = next_round(messages, slot);
    for (int i = 1; i < ranks(); ++i)
      for (const Piece& piece : rounds[group]) {
        const Message& message = messages[piece.message];
        receive(group, half(group) + (i - 1) * slot + piece.place, piece.bytes, before(i), kData);
        send(group, at(message.whole, after(i) * message.shard_bytes() + piece.offset), piece.bytes,
             after(i), kData);
      }
    wait(group ^ 1);
    sum_round(messages, in_place, rounds[group ^ 1], half(group ^ 1));
    if (rounds[group].empty()) break;
  }
}

void MpiChannel::sum_round(std::span<const Message> messages, bool in_place,
                           std::span<const Piece> pieces, const std::byte* half) {
  const int64_t slot = slot_bytes();
  for (const Piece& piece : pieces) {
    const Message& message = messages[piece.message];
    std::byte* own = at(message.whole, rank() * message.shard_bytes() + piece.offset);
    std::byte* dst = in_place ? own : at(message.shard, piece.offset);
    sum_.sum(message.dtype, piece.bytes / dtype_bytes(message.dtype), dst, [&](int r) {
      const int steps = (rank() + ranks() - r) % ranks();  // r == before(steps)
      return steps == 0 ? own : half + (steps - 1) * slot + piece.place;
    });
  }
}

void MpiChannel::broadcast(const Call& call) {
  int group = 0;
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes, group ^= 1) {
    const int64_t bytes = std::min(kMessageBytes, call.bytes - begin);
    wait(group);
    if (rank() != call.peer) receive(group, at(call.to, begin), bytes, call.peer, kData);
    for (int i = 1; i < ranks() && rank() == call.peer; ++i)
      send(group, at(call.from, begin), bytes, after(i), kData);
  }
  wait(0);
  wait(1);
}

void MpiChannel::exchange(const Call& call) {
  int group = 0;
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes, group ^= 1) {
    const int64_t bytes = std::min(kMessageBytes, call.bytes - begin);
    wait(group);
    for (int i = 1; i < ranks(); ++i) {
      receive(group, at(call.to, before(i) * call.bytes + begin), bytes, before(i), kData);
      send(group, at(call.from, after(i) * call.bytes + begin), bytes, after(i), kData);
    }
  }
  copy_bytes(at(call.from, rank() * call.bytes), at(call.to, rank() * call.bytes), call.bytes);
  wait(0);
  wait(1);
}

// ---- Messages between two ranks

void MpiChannel::send_message(const Call& call) {
  const Announcement own = announce(record_);
  if (state_.options.check) send(kSaid, &own, sizeof(own), call.peer, kMessageAnnounce);
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes) {
    wait(0);
    send(0, at(call.from, begin), std::min(kMessageBytes, call.bytes - begin), call.peer, kMessage);
  }
  wait(kSaid);
  wait(0);
}

void MpiChannel::receive_message(const Call& call) {
  if (state_.options.check) {
    Announcement theirs{};
    receive(kSaid, &theirs, sizeof(theirs), call.peer, kMessageAnnounce);
    wait(kSaid);
    const CallRecord sent = understand(theirs);
    const bool good = sent.bytes == record_.bytes &&
                      theirs.what_hash == hash_bytes(call.what.data(), call.what.size());
    if (!good) {
      state_.fail(disagreement(call.peer, sent, rank(), record_));
      state_.throw_failure();
    }
  }
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes) {
    wait(0);
    receive(0, at(call.to, begin), std::min(kMessageBytes, call.bytes - begin), call.peer,
            kMessage);
  }
  wait(0);
}

}  // namespace onefold
