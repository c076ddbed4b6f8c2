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
#include "comm/byte_at.h"
#include "kernels/host_memory.h"

namespace onefold {
namespace {

using Clock = std::chrono::steady_clock;

enum Tag : int { kHeader, kData, kMessageHeader, kMessage, kState };
// Groups 0 and 1 carry data in turn, group 2 headers.
constexpr int kHeaders = 2;

constexpr int64_t kScratchBytes = int64_t{8} << 20;
constexpr int64_t kCacheLine = 64;
// The largest message: enough for full bandwidth, and a count that fits an int.
constexpr int64_t kMessageBytes = int64_t{16} << 20;
constexpr double kCancelSeconds = 1;
constexpr double kDrainSeconds = 0.3;  // for messages that a closing message may have overtaken
// A rank that waits looks for questions every millisecond.
constexpr double kAnswerSeconds = 1;
// Limit on the messages in flight at once, to and from each rank.
constexpr size_t kPiecesPerRound = 64;

// Paces a loop that polls MPI, which moves data only while it is called, and measures its timeout.
// pause() returns at once for the first `spin`, then yields while that is cheap (see
// rendezvous.cpp), and sleeps briefly where it is not, or after a long wait.
class PollBackoff {
 public:
  PollBackoff(double seconds, Clock::duration spin)
      : begin_(Clock::now()), now_(begin_), seconds_(seconds), spin_(spin) {}

  void pause() {
    const auto waited = now_ - begin_;
    const bool spins = waited < spin_;
    const bool sleeps = is_long() || now_ < no_yield_until_;
    if (!spins && sleeps)
      std::this_thread::sleep_for(std::chrono::microseconds(waited > kVeryLong ? 500 : 20));
    else if (!spins)
      std::this_thread::yield();
    const auto before = std::exchange(now_, Clock::now());
    if (!sleeps && now_ - before > kLongYield) no_yield_until_ = now_ + kNoYieldFor;
  }
  bool timed_out() const { return std::chrono::duration<double>(now_ - begin_).count() > seconds_; }
  // Longer than a wait takes while all ranks run: worth checking for ranks that have left.
  bool is_long() const { return now_ - begin_ > kLong; }

 private:
  static constexpr auto kLong = std::chrono::milliseconds(10);
  static constexpr auto kVeryLong = std::chrono::seconds(1);
  static constexpr auto kLongYield = std::chrono::microseconds(300);
  static constexpr auto kNoYieldFor = std::chrono::milliseconds(100);
  static thread_local Clock::time_point no_yield_until_;

  const Clock::time_point begin_;
  Clock::time_point now_;
  const double seconds_;
  const Clock::duration spin_;
};
thread_local Clock::time_point PollBackoff::no_yield_until_{};

}  // namespace

// ---- What the channels of a process share

MpiState::MpiState(const MpiApi& api, const CommOptions& options, const Place& place)
    : api(api),
      options(options),
      rank(api.rank()),
      ranks(api.ranks()),
      oversubscribed(place.ranks > available_cores()),
      left_(static_cast<size_t>(ranks)),
      answered_(static_cast<size_t>(ranks)),
      waiting_(static_cast<size_t>(ranks)) {}

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
  // MPI_Abort waits for the launcher's answer. Where none comes, exiting has the same effect: the
  // launcher ends the others when one process has exited.
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
  if (ranks > 1) receive_next();
}

void MpiState::receive_next() {
  api.receive(port_, 0, next_.get(), sizeof(Message), kMpiAnyRank, kState);
}

void MpiState::send(int to, About about) {
  sent_->push_back({rank, about});
  api.send(port_, 1, &sent_->back(), sizeof(Message), to, kState);
}

void MpiState::retire(MpiPort* port) {
  const std::lock_guard lock(mutex_);
  ports_.push_back(port);
}

void MpiState::take(const Message& message) {
  const auto from = static_cast<size_t>(message.rank);
  switch (message.about) {
    case About::closing:
      left_[from].store(true);
      ++left_count_;
      return;
    case About::question:
      return send(message.rank, waits() ? About::waits : About::computes);
    case About::waits:
    case About::computes:
      waiting_[from].store(message.about == About::waits);
      answered_[from].store(true);
  }
}

void MpiState::poll_messages() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || left_count_ == ranks - 1) return;
  while (api.poll(port_, 0) == 1) {
    take(*next_);
    if (left_count_ == ranks - 1) return;
    receive_next();
  }
}

std::vector<int> MpiState::not_waiting() {
  const std::lock_guard asking(asking_);
  if (not_waiting_) return *not_waiting_;
  std::vector<int> asked;
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < ranks; ++r)
      if (r != rank && !has_left(r)) asked.push_back(r);
    for (const int r : asked) send(r, About::question);
  }
  const auto is_open = [&](int r) {
    return !answered_[static_cast<size_t>(r)].load() && !has_left(r);
  };
  PollBackoff backoff(kAnswerSeconds, {});
  while (std::any_of(asked.begin(), asked.end(), is_open) && !backoff.timed_out()) {
    poll_messages();
    backoff.pause();
  }
  std::erase_if(asked,
                [&](int r) { return waiting_[static_cast<size_t>(r)].load() || has_left(r); });
  if (!waits()) asked.push_back(rank);
  not_waiting_ = std::move(asked);
  return *not_waiting_;
}

void MpiState::close() {
  for (int r = 0; r < ranks; ++r)
    if (r != rank) send(r, About::closing);
  PollBackoff backoff(0, {});
  while (api.poll(port_, 1) == 0 || left_count_ < ranks - 1) {
    poll_messages();
    backoff.pause();
  }
  for (MpiPort* port : ports_) api.close(port);
}

// Messages may still arrive or be read: their memory is never freed.
void MpiState::abandon() {
  static_cast<void>(next_.release());
  static_cast<void>(sent_.release());
}

int64_t mpi_scratch_bytes(int ranks) {
  if (ranks == 1) return 0;
  return std::max(kScratchBytes, 2 * kCacheLine * static_cast<int64_t>(ranks));
}

// ---- Opening and closing

MpiChannel::MpiChannel(MpiState& state, std::string_view name, void* scratch,
                       const RankGroup& group)
    : Channel(group.index_of(state.rank), group.size()),
      state_(state),
      api_(state.api),
      name_(channel_name(std::string(name), group)),
      group_(group),
      scratch_(static_cast<std::byte*>(scratch)),
      port_(api_.open()),
      headers_(group.members.size()),
      sum_(group.size()) {
  const Call call{Collective::barrier, name_};
  record_.assign(call);
  record_.what = fmt::format("open channel {}", name_);
  const MpiState::InCall in_call(state_);
  wait(0);
  exchange_headers(encode(record_));
}

// Closing a port is collective, so all ranks close theirs together, in MpiState::close().
MpiChannel::~MpiChannel() { state_.retire(port_); }

// ---- Messages and waiting

void MpiChannel::send(int group, const void* data, int64_t bytes, int to, int tag) {
  api_.send(port_, group, data, bytes, named(to), tag);
  peers_[group].push_back(to);
}

void MpiChannel::receive(int group, void* data, int64_t bytes, int from, int tag) {
  api_.receive(port_, group, data, bytes, named(from), tag);
  peers_[group].push_back(from);
}

void MpiChannel::wait(int group) {
  // A header arrives when its sender reaches the call, which may take long. Data moves as long as
  // MPI is polled, once all ranks are in the call.
  const auto spin = std::chrono::microseconds(group == kHeaders ? 50 : 2000);
  PollBackoff backoff(state_.options.timeout_seconds,
                      state_.oversubscribed ? Clock::duration{} : spin);
  std::optional<PollBackoff> drain;  // since a peer was found to have left
  for (int status = 0; (status = api_.poll(port_, group)) != 1; backoff.pause()) {
    if (status < 0)
      state_.fail(fmt::format("{} on channel \"{}\" of rank {} failed: {}", record_.text(), name_,
                              named(rank()), api_.error(port_)));
    if (backoff.is_long()) state_.poll_messages();
    // What a rank sent before it left may arrive after its closing message: keep polling for
    // kDrainSeconds. The pause comes last, so that a poll follows it even if this thread was not
    // scheduled in all that time.
    if (!backoff.is_long() || !waits_for_left_rank(group))
      drain.reset();
    else if (!drain)
      drain.emplace(kDrainSeconds, spin);
    if (backoff.timed_out() || (drain && drain->timed_out())) fail_missing(group);
    if (drain) drain->pause();
    if (!state_.failed()) continue;
    cancel_all();
    state_.throw_failure();
  }
  peers_[group].clear();
}

// The exception that follows frees the caller's memory. The MPI standard says that a cancelled
// message completes, but not every library completes one that a hanging rank has begun.
void MpiChannel::cancel_all() {
  for (int g = 0; g < kMpiGroups; ++g) api_.cancel(port_, g);
  PollBackoff backoff(kCancelSeconds, {});
  for (int g = 0; g < kMpiGroups; ++g) {
    for (int status = 0; (status = api_.poll(port_, g)) != 1; backoff.pause()) {
      if (status < 0) api_.cancel(port_, g);
      if (backoff.timed_out()) state_.end_process(state_.failure());
    }
    peers_[g].clear();
  }
}

bool MpiChannel::waits_for_left_rank(int group) const {
  for (size_t i = 0; i < peers_[group].size(); ++i)
    if (state_.has_left(named(peers_[group][i])) &&
        api_.is_pending(port_, group, static_cast<int>(i)))
      return true;
  return false;
}

// A rank is missing if messages to or from it are pending: one that has reached the call completes
// them, even if its messages with other ranks are pending. It may itself wait, in other channels,
// for one that does not.
void MpiChannel::fail_missing(int group) {
  std::vector<int> left, late;
  for (int r = 0; r < ranks(); ++r) {
    bool pending = false;
    for (size_t i = 0; i < peers_[group].size(); ++i)
      pending =
          pending || (peers_[group][i] == r && api_.is_pending(port_, group, static_cast<int>(i)));
    if (pending) (state_.has_left(named(r)) ? left : late).push_back(named(r));
  }
  const auto text = [&](const std::vector<int>& missing, double seconds) {
    return missing_text(missing, record_.text(), name_, seconds, {{named(rank())}},
                        "the last call there was " + last_.text());
  };
  if (!left.empty()) return state_.fail(text(left, -1));
  state_.fail(
      late_text(std::move(late), state_.not_waiting(), [&](const std::vector<int>& missing) {
        return text(missing, state_.options.timeout_seconds);
      }));
}

// ---- Call headers

MpiChannel::CallHeader MpiChannel::encode(const CallRecord& record) {
  CallHeader header{static_cast<int16_t>(record.collective),
                    static_cast<int16_t>(record.dtype),
                    record.peer,
                    record.bytes,
                    record.messages,
                    record.sizes,
                    hash_bytes(record.what.data(), record.what.size()),
                    {}};
  record.what.copy(header.what, sizeof(header.what) - 1);
  return header;
}

CallRecord MpiChannel::decode(const CallHeader& header) {
  CallRecord record;
  record.collective = static_cast<Collective>(header.collective);
  record.dtype = static_cast<DType>(header.dtype);
  record.peer = header.peer;
  record.bytes = header.bytes;
  record.messages = header.messages;
  record.sizes = header.sizes;
  record.what = header.what;
  return record;
}

bool MpiChannel::same(const CallHeader& a, const CallHeader& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Every rank receives the headers of all others, so that all find the same mismatch and the same
// missing ranks.
void MpiChannel::exchange_headers(const CallHeader& own) {
  headers_[static_cast<size_t>(rank())] = own;
  for (int i = 1; i < ranks(); ++i) {
    receive(kHeaders, &headers_[static_cast<size_t>(before(i))], sizeof(own), before(i), kHeader);
    send(kHeaders, &headers_[static_cast<size_t>(rank())], sizeof(own), after(i), kHeader);
  }
  wait(kHeaders);
  for (int r = 1; r < ranks(); ++r) {
    const auto& other = headers_[static_cast<size_t>(r)];
    if (same(other, headers_[0])) continue;
    state_.fail(disagreement(named(0), decode(headers_[0]), named(r), decode(other)));
    state_.throw_failure();
  }
}

void MpiChannel::run(const Call& call) {
  if (state_.failed()) state_.throw_failure();
  const MpiState::InCall in_call(state_);
  last_ = record_;  // the call before has completed
  record_.assign(call);
  if (call.collective == Collective::send) return send_message(call);
  if (call.collective == Collective::receive) return receive_message(call);
  if (state_.options.check || call.collective == Collective::barrier)
    exchange_headers(encode(record_));
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
    place += (count + kCacheLine - 1) / kCacheLine * kCacheLine;
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
    return in_place ? byte_at(message.whole, rank() * message.shard_bytes()) : message.shard;
  };
  next_message_ = 0;
  for (int group = 0;; group ^= 1) {
    const std::vector<Piece> pieces = next_round(messages, kMessageBytes);
    wait(group);  // for the round before the last
    if (pieces.empty()) break;
    for (int i = 1; i < ranks(); ++i)
      for (const Piece& piece : pieces) {
        const Message& message = messages[piece.message];
        receive(group, byte_at(message.whole, before(i) * message.shard_bytes() + piece.offset),
                piece.bytes, before(i), kData);
        send(group, byte_at(shard_of(message), piece.offset), piece.bytes, after(i), kData);
      }
  }
  wait(0);
  wait(1);
  for (const Message& message : messages) {
    void* place = byte_at(message.whole, rank() * message.shard_bytes());
    copy_bytes(shard_of(message), place, message.shard_bytes());
  }
}

// The section of each other rank in a half of the scratch. A single rank has no scratch and sums
// nothing, but still copies, in rounds of this size.
int64_t MpiChannel::section_bytes() const {
  if (ranks() == 1) return kMessageBytes;
  return mpi_scratch_bytes(ranks()) / 2 / (ranks() - 1) / kCacheLine * kCacheLine;
}

// The sums go to the messages' shards or, in place, to this rank's pieces of `whole`.
void MpiChannel::reduce(std::span<const Message> messages, bool in_place) {
  const int64_t half_bytes = mpi_scratch_bytes(ranks()) / 2, section = section_bytes();
  next_message_ = 0;
  std::vector<Piece> rounds[2];
  const auto half = [&](int group) { return scratch_ + group * half_bytes; };
  for (int group = 0;; group ^= 1) {
    rounds[group] = next_round(messages, section);
    for (int i = 1; i < ranks(); ++i)
      for (const Piece& piece : rounds[group]) {
        const Message& message = messages[piece.message];
        receive(group, half(group) + (i - 1) * section + piece.place, piece.bytes, before(i),
                kData);
        send(group, byte_at(message.whole, after(i) * message.shard_bytes() + piece.offset),
             piece.bytes, after(i), kData);
      }
    wait(group ^ 1);
    sum_round(messages, in_place, rounds[group ^ 1], half(group ^ 1));
    if (rounds[group].empty()) break;
  }
}

void MpiChannel::sum_round(std::span<const Message> messages, bool in_place,
                           std::span<const Piece> pieces, const std::byte* half) {
  const int64_t section = section_bytes();
  for (const Piece& piece : pieces) {
    const Message& message = messages[piece.message];
    std::byte* own = byte_at(message.whole, rank() * message.shard_bytes() + piece.offset);
    std::byte* dst = in_place ? own : byte_at(message.shard, piece.offset);
    sum_.sum(message.dtype, piece.bytes / dtype_bytes(message.dtype), dst, [&](int r) {
      const int steps = (rank() + ranks() - r) % ranks();  // r == before(steps)
      return steps == 0 ? own : half + (steps - 1) * section + piece.place;
    });
  }
}

void MpiChannel::broadcast(const Call& call) {
  int group = 0;
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes, group ^= 1) {
    const int64_t bytes = std::min(kMessageBytes, call.bytes - begin);
    wait(group);
    if (rank() != call.peer) receive(group, byte_at(call.to, begin), bytes, call.peer, kData);
    for (int i = 1; i < ranks() && rank() == call.peer; ++i)
      send(group, byte_at(call.from, begin), bytes, after(i), kData);
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
      receive(group, byte_at(call.to, before(i) * call.bytes + begin), bytes, before(i), kData);
      send(group, byte_at(call.from, after(i) * call.bytes + begin), bytes, after(i), kData);
    }
  }
  copy_bytes(byte_at(call.from, rank() * call.bytes), byte_at(call.to, rank() * call.bytes),
             call.bytes);
  wait(0);
  wait(1);
}

// ---- Messages between two ranks

void MpiChannel::send_message(const Call& call) {
  const CallHeader own = encode(record_);
  if (state_.options.check) send(kHeaders, &own, sizeof(own), call.peer, kMessageHeader);
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes) {
    wait(0);
    send(0, byte_at(call.from, begin), std::min(kMessageBytes, call.bytes - begin), call.peer,
         kMessage);
  }
  wait(kHeaders);
  wait(0);
}

void MpiChannel::receive_message(const Call& call) {
  if (state_.options.check) {
    CallHeader theirs{};
    receive(kHeaders, &theirs, sizeof(theirs), call.peer, kMessageHeader);
    wait(kHeaders);
    const CallRecord sent = decode(theirs);
    const bool good = sent.bytes == record_.bytes &&
                      theirs.what_hash == hash_bytes(call.what.data(), call.what.size());
    if (!good) {
      state_.fail(disagreement(named(call.peer), sent, named(rank()), record_));
      state_.throw_failure();
    }
  }
  for (int64_t begin = 0; begin < call.bytes; begin += kMessageBytes) {
    wait(0);
    receive(0, byte_at(call.to, begin), std::min(kMessageBytes, call.bytes - begin), call.peer,
            kMessage);
  }
  wait(0);
}

}  // namespace onefold
