#include "comm/rendezvous.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/text.h"

namespace onefold {
namespace {

using Clock = std::chrono::steady_clock;

// A waiting rank yields its core for kYieldFor, about what sleeping and waking cost, and then
// sleeps. Yielding, unlike spinning, is fast with more ranks than cores too (3 ranks on 2 cores:
// 4 us a call, against 35 with sleeping alone and 70 with spinning). Where other threads compute, a
// yield may cost a whole time slice, while a sleeping thread is scheduled as soon as it is woken:
// after a yield longer than kLongYield the rank does not yield again for kNoYieldFor.
constexpr auto kYieldFor = std::chrono::microseconds(30);
constexpr auto kLongYield = std::chrono::microseconds(300);
constexpr auto kNoYieldFor = std::chrono::milliseconds(100);

int at_least_one(int ranks) {
  require(ranks >= 1, "a group of {} ranks", ranks);
  return ranks;
}

RankGroup all_of(int ranks) {
  RankGroup group;
  for (int rank = 0; rank < ranks; ++rank) group.members.push_back(rank);
  return group;
}

}  // namespace

LocalState::LocalState(int ranks, const CommOptions& options)
    : ranks(at_least_one(ranks)),
      options(options),
      all_(all_of(ranks)),
      own_threads_(static_cast<size_t>(ranks)),
      calls_(static_cast<size_t>(ranks)),
      left_(static_cast<size_t>(ranks)) {}

LocalState::~LocalState() = default;

void LocalState::join(int rank) {
  require(rank >= 0 && rank < ranks, "rank {} joins a group of {}", rank, ranks);
  const std::lock_guard lock(mutex_);
  Waiting::Count& own = own_threads_[static_cast<size_t>(rank)];
  require(own == nullptr, "rank {} joins its group twice", rank);
  own = Waiting::of_this_thread();
}

std::vector<int> LocalState::not_waiting() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> list;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const bool waits = own_threads_[r] != nullptr && *own_threads_[r] > 0 && calls_[r] > 0;
    if (!waits && !has_left(rank)) list.push_back(rank);
  }
  return list;
}

void LocalState::leave(int rank) noexcept {
  left_[static_cast<size_t>(rank)].store(true);
  ++left_count_;
  wake_all();
}

Rendezvous& LocalState::open(int rank, std::string_view name, const RankGroup& group) {
  if (failed()) throw_failure();
  Rendezvous* channel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Line& line = lines_[{group.name, group.members}];
    const size_t index = line.opened[rank]++;
    if (index == line.channels.size())
      line.channels.push_back(std::make_unique<Rendezvous>(*this, name, group));
    channel = line.channels[index].get();
  }
  if (channel->name() != name) {
    fail(
        fmt::format("rank {} opens channel \"{}\" where another rank has opened \"{}\": ranks "
                    "must open the same channels in the same order",
                    rank, name, channel->name()));
    throw_failure();
  }
  return *channel;
}

void LocalState::fail(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    failure_ = why;
    failed_.store(true);
  }
  wake_all();
}

void LocalState::throw_failure() const {
  const std::lock_guard lock(mutex_);
  throw PeerError(failure_);
}

std::string LocalState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void LocalState::wake_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, line] : lines_)
    for (const auto& channel : line.channels) channel->wake();
}

Rendezvous::Rendezvous(LocalState& state, std::string_view name, const RankGroup& group)
    : state_(state), name_(name), group_(group), slots_(group.members.size()) {}

// ---- Waiting

// Returns when done() holds, or after the timeout. A thread that changes what done() reads calls
// wake() afterwards. No wakeup is lost: all these accesses are sequentially consistent, so either
// wake() reads the new sleeping_, or the thread that is about to sleep reads the change.
template <class Done>
void Rendezvous::wait(int rank, const Done& done, bool may_time_out) {
  Clock::time_point& no_yield_until = slot(rank).no_yield_until;
  const auto begin = Clock::now();
  for (auto now = begin; now >= no_yield_until && now - begin < kYieldFor;) {
    if (done()) return;
    std::this_thread::yield();
    const auto before = std::exchange(now, Clock::now());
    if (now - before > kLongYield) no_yield_until = now + kNoYieldFor;
  }
  const double seconds = std::min(state_.options.timeout_seconds, 1e8);  // the clock's range
  std::unique_lock lock(mutex_);
  ++sleeping_;
  if (may_time_out)
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), done);
  else
    changed_.wait(lock, done);
  --sleeping_;
}

void Rendezvous::wake() {
  if (sleeping_.load() == 0) return;
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

// ---- Slots

void Rendezvous::enter_call(int rank, const Channel::Call& call) {
  if (state_.failed()) state_.throw_failure();
  Slot& s = slot(rank);
  s.call = call;
  const std::lock_guard lock(s.mutex);
  s.record.assign(call);
  s.has_record = s.in_call = true;
  ++state_.calls(named(rank));
}

void Rendezvous::exit_call(int rank) {
  Slot& s = slot(rank);
  const std::lock_guard lock(s.mutex);
  s.in_call = false;
  --state_.calls(named(rank));
}

CallRecord Rendezvous::record_of(int rank) {
  Slot& s = slot(rank);
  const std::lock_guard lock(s.mutex);
  return s.record;
}

void Rendezvous::throw_failure(int rank) {
  exit_call(rank);
  state_.throw_failure();
}

// ---- Barriers

int64_t Rendezvous::arrive(int rank) {
  const int64_t round = ++slot(rank).arrived;
  if (arrivals_.fetch_add(1) + 1 == round * ranks()) wake();
  return round;
}

// False if all ranks have arrived in the meantime: then the others read this rank's memory, and it
// must complete the call.
bool Rendezvous::withdraw(int rank, int64_t round) {
  int64_t now = arrivals_.load();
  while (now < round * ranks()) {
    if (!arrivals_.compare_exchange_weak(now, now - 1)) continue;
    --slot(rank).arrived;
    return true;
  }
  return false;
}

bool Rendezvous::missing_rank_left(int64_t round) const {
  if (!state_.any_left()) return false;
  for (int r = 0; r < ranks(); ++r)
    if (has_left(r) && slot(r).arrived.load() < round) return true;
  return false;
}

void Rendezvous::begin_collective(int rank, const Channel::Call& call) {
  const Waiting waiting;
  enter_call(rank, call);
  const int64_t round = arrive(rank);
  if (!all_arrived(round)) detect_crossed_messages(rank);
  while (!all_arrived(round)) {
    wait(
        rank, [&] { return all_arrived(round) || state_.failed() || missing_rank_left(round); },
        true);
    if (all_arrived(round)) break;
    // The failure is recorded before the withdrawal: otherwise another rank could time out in
    // between and report this one as missing.
    if (!state_.failed()) state_.fail(missing_at_barrier(rank, round));
    if (withdraw(rank, round)) throw_failure(rank);
  }
  compare_records(rank);
}

void Rendezvous::end_collective(int rank) {
  const int64_t round = arrive(rank);
  wait(
      rank, [&] { return all_arrived(round); }, false);
  exit_call(rank);
}

// Every rank finds the same first pair that differs, so all throw the same error, and none goes on
// to read memory.
void Rendezvous::compare_records(int rank) {
  for (int r = 1; r < ranks(); ++r) {
    if (slot(r).record.agrees_with(slot(0).record)) continue;
    state_.fail(disagreement(named(0), slot(0).record, named(r), slot(r).record));
    throw_failure(rank);
  }
}

std::string Rendezvous::last_call(int rank) {
  Slot& s = slot(rank);
  const std::lock_guard lock(s.mutex);
  if (!s.has_record) return fmt::format("rank {} has made no call there", named(rank));
  if (s.in_call) return fmt::format("rank {} waits in {}", named(rank), s.record.text());
  return fmt::format("the last call of rank {} there was {}", named(rank), s.record.text());
}

// The error of a rank whose wait at a barrier has failed.
std::string Rendezvous::missing_at_barrier(int rank, int64_t round) {
  std::vector<int> left, late, waiting;
  std::vector<std::string> last_of_left;
  for (int r = 0; r < ranks(); ++r) {
    if (slot(r).arrived.load() >= round) {
      waiting.push_back(named(r));
    } else if (has_left(r)) {
      left.push_back(named(r));
      last_of_left.push_back(last_call(r));
    } else {
      late.push_back(r);
    }
  }
  if (left.empty()) return late_text(rank, std::move(late), waiting);
  return missing_text(left, record_of(rank).text(), channel_text(), -1, waiting,
                      join(last_of_left, "; "));
}

// Of ranks that are late here, which may themselves wait, in other channels, for one that is not.
std::string Rendezvous::late_text(int rank, std::vector<int> late, std::span<const int> waiting) {
  std::vector<int> names;
  for (const int r : late) names.push_back(named(r));
  return onefold::late_text(
      std::move(names), state_.not_waiting(), [&](const std::vector<int>& missing) {
        std::vector<std::string> last;
        for (const int r : missing) last.push_back(last_call(group_.index_of(r)));
        return missing_text(missing, record_of(rank).text(), channel_text(),
                            state_.options.timeout_seconds, waiting, join(last, "; "));
      });
}

// ---- Messages between two ranks

std::string Rendezvous::missing_peer(int rank, int peer) {
  if (!has_left(peer)) return late_text(rank, {peer}, {{named(rank)}});
  return missing_text({{named(peer)}}, record_of(rank).text(), channel_text(), -1, {{named(rank)}},
                      last_call(peer));
}

std::string Rendezvous::disagreement_of(int rank, int other) {
  return disagreement(named(rank), record_of(rank), named(other), record_of(other));
}

std::string Rendezvous::channel_text() const { return channel_name(name_, group_); }

// A collective waits for a peer that waits for this rank's half of a message, or both ranks of a
// pair send or both receive: none of these calls can complete. Each side publishes its own state
// before it reads the other's, so at least one of them detects the conflict.
void Rendezvous::detect_crossed_messages(int rank) {
  for (int r = 0; r < ranks(); ++r)
    if (slot(r).sends_to.load() == rank || slot(r).receives_from.load() == rank)
      state_.fail(disagreement_of(r, rank));
}

void Rendezvous::detect_crossed_call(int rank, int peer) {
  const bool sends = slot(rank).call.collective == Collective::send;
  const Slot& other = slot(peer);
  const bool crossed = other.arrived.load() > slot(rank).arrived.load() ||
                       (sends ? other.sends_to : other.receives_from).load() == rank;
  // Read after `crossed`: a peer that has taken the message in the meantime may be in a later call,
  // which is no conflict.
  if (crossed && (!sends || slot(rank).sends_to.load() == peer))
    state_.fail(disagreement_of(peer, rank));
}

void Rendezvous::send(int rank, const Channel::Call& call) {
  const Waiting waiting;
  enter_call(rank, call);
  std::atomic<int>& message = slot(rank).sends_to;
  const int to = call.peer;
  message.store(to);
  wake();
  detect_crossed_call(rank, to);
  wait(
      rank,
      [&] {
        return (message.load() != to && message.load() != kTaken) || state_.failed() ||
               (message.load() == to && has_left(to));
      },
      true);
  if (int offered = to; message.load() == to) {
    if (!state_.failed()) state_.fail(missing_peer(rank, to));
    if (message.compare_exchange_strong(offered, kNoRank)) throw_failure(rank);
  }
  wait(
      rank, [&] { return message.load() != kTaken; }, false);  // the receiver is copying
  if (message.exchange(kNoRank) == kRefused) throw_failure(rank);
  exit_call(rank);
}

// Copies the message that rank `from` offers; false: it is not the one that is waited for, or the
// copy failed. The sender waits until then, whatever happens.
bool Rendezvous::take_message(int from, int rank, const Channel::Call& call, RankMemory& memory) {
  const Slot& sender = slot(from);
  if (!sender.record.delivers_to(slot(rank).record)) {
    state_.fail(disagreement(named(from), sender.record, named(rank), slot(rank).record));
    return false;
  }
  try {
    memory.copy(sender.call.from, call.to, call.bytes);
    memory.finish();
    return true;
  } catch (const std::exception& error) {
    state_.fail(fmt::format("rank {} failed: {}", named(rank), error.what()));
    return false;
  }
}

void Rendezvous::receive(int rank, const Channel::Call& call, RankMemory& memory) {
  const Waiting waiting;
  enter_call(rank, call);
  Slot& s = slot(rank);
  const int from = call.peer;
  std::atomic<int>& message = slot(from).sends_to;
  s.receives_from.store(from);
  detect_crossed_call(rank, from);
  wait(
      rank, [&] { return message.load() == rank || state_.failed() || has_left(from); }, true);
  int offered = rank;
  const bool taken = !state_.failed() && message.compare_exchange_strong(offered, kTaken);
  // Before the sender can return: its next call must not find this receive and report a conflict.
  s.receives_from.store(kNoRank);
  if (!taken) {
    if (!state_.failed()) state_.fail(missing_peer(rank, from));
    throw_failure(rank);
  }
  const bool good = take_message(from, rank, call, memory);
  message.store(good ? kNoRank : kRefused);
  wake();
  if (!good) throw_failure(rank);
  exit_call(rank);
}

}  // namespace onefold
