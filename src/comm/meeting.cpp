#include "comm/meeting.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/text.h"
#include "kernels/host_memory.h"

namespace onefold {
namespace {

using Clock = std::chrono::steady_clock;

// Before a rank sleeps it offers its core to others for this long: about what falling asleep and
// being woken costs. Yielding, unlike spinning, suits more ranks than cores too (3 ranks on 2
// cores: 4 us a call, against 35 asleep and 70 spinning). But where others compute, a yield costs a
// whole time slice, and one that sleeps is woken at once: a yield that lasted is not tried again
// soon.
constexpr auto kBriefly = std::chrono::microseconds(30);
constexpr auto kSlice = std::chrono::microseconds(300);
constexpr auto kSoon = std::chrono::milliseconds(100);

int at_least_one(int ranks) {
  require(ranks >= 1, "a group of {} ranks", ranks);
  return ranks;
}

}  // namespace

LocalState::LocalState(int ranks, const CommOptions& options)
    : ranks(at_least_one(ranks)),
      options(options),
      opened_(static_cast<size_t>(ranks)),
      joined_(static_cast<size_t>(ranks)),
      left_(static_cast<size_t>(ranks)) {}

LocalState::~LocalState() = default;

void LocalState::join(int rank) {
  require(rank >= 0 && rank < ranks, "rank {} joins a group of {}", rank, ranks);
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(rank);
  require(!joined_[index], "rank {} joins its group twice", rank);
  joined_[index] = true;
}

void LocalState::leave(int rank) noexcept {
  left_[static_cast<size_t>(rank)].store(true);
  ++departures_;
  wake_all();
}

Meeting& LocalState::open(int rank, std::string_view name) {
  if (failed()) throw_failure();
  Meeting* meeting = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const size_t index = opened_[static_cast<size_t>(rank)]++;
    if (index == meetings_.size()) meetings_.push_back(std::make_unique<Meeting>(*this, name));
    meeting = meetings_[index].get();
  }
  if (meeting->name() != name) {
    fail(
        fmt::format("rank {} opens channel \"{}\" where another rank has opened \"{}\": ranks "
                    "must open the same channels in the same order",
                    rank, name, meeting->name()));
    throw_failure();
  }
  return *meeting;
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

void LocalState::wake_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& meeting : meetings_) meeting->wake();
}

Meeting::Meeting(LocalState& state, std::string_view name)
    : state_(state), name_(name), seats_(static_cast<size_t>(state.ranks)) {}

// ---- Waiting

// Returns when done() holds, or the time is up. Who changes what done() reads calls wake() after:
// it sees that somebody sleeps, or the sleeper sees the change, as both are sequentially
// consistent.
template <class Done>
void Meeting::wait(int rank, const Done& done, bool may_time_out) {
  Clock::time_point& busy_until = seat(rank).busy_until;
  const auto begin = Clock::now();
  for (auto now = begin; now >= busy_until && now - begin < kBriefly;) {
    if (done()) return;
    std::this_thread::yield();
    const auto before = std::exchange(now, Clock::now());
    if (now - before > kSlice) busy_until = now + kSoon;
  }
  const double seconds = std::min(state_.options.timeout_seconds, 1e8);  // a clock can count them
  std::unique_lock lock(mutex_);
  ++sleepers_;
  if (may_time_out)
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), done);
  else
    changed_.wait(lock, done);
  --sleepers_;
}

void Meeting::wake() {
  if (sleepers_.load() == 0) return;
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

// ---- Seats

void Meeting::sit(int rank, const Channel::Call& call) {
  if (state_.failed()) state_.throw_failure();
  Seat& s = seat(rank);
  s.call = call;
  const std::lock_guard lock(s.mutex);
  s.record.assign(call);
  s.any = s.inside = true;
}

void Meeting::rise(int rank) {
  Seat& s = seat(rank);
  const std::lock_guard lock(s.mutex);
  s.inside = false;
}

CallRecord Meeting::record_of(int rank) {
  Seat& s = seat(rank);
  const std::lock_guard lock(s.mutex);
  return s.record;
}

void Meeting::throw_failure(int rank) {
  rise(rank);
  state_.throw_failure();
}

// ---- Barriers

int64_t Meeting::arrive(int rank) {
  const int64_t round = ++seat(rank).arrived;
  if (arrivals_.fetch_add(1) + 1 == round * state_.ranks) wake();
  return round;
}

// False if all have come in the meantime: then this rank must stay, the others count on it.
bool Meeting::withdraw(int rank, int64_t round) {
  int64_t now = arrivals_.load();
  while (now < round * state_.ranks) {
    if (!arrivals_.compare_exchange_weak(now, now - 1)) continue;
    --seat(rank).arrived;
    return true;
  }
  return false;
}

bool Meeting::missing_rank_left(int64_t round) const {
  if (!state_.somebody_left()) return false;
  for (int r = 0; r < state_.ranks; ++r)
    if (state_.has_left(r) && seat(r).arrived.load() < round) return true;
  return false;
}

void Meeting::meet(int rank, const Channel::Call& call) {
  sit(rank, call);
  const int64_t round = arrive(rank);
  if (!all_arrived(round)) refuse_crossed_messages(rank);
  while (!all_arrived(round)) {
    wait(
        rank, [&] { return all_arrived(round) || state_.failed() || missing_rank_left(round); },
        true);
    if (all_arrived(round)) break;
    // The failure comes before the withdrawal: others must not take this rank for a missing one.
    if (!state_.failed()) state_.fail(absence(rank, round));
    if (withdraw(rank, round)) throw_failure(rank);
  }
  compare_records(rank);
}

void Meeting::part(int rank) {
  const int64_t round = arrive(rank);
  wait(
      rank, [&] { return all_arrived(round); }, false);
  rise(rank);
}

// Every rank finds the same first pair, so all throw the same, and none goes on to read memory.
void Meeting::compare_records(int rank) {
  for (int r = 1; r < state_.ranks; ++r) {
    if (seat(r).record.agrees_with(seat(0).record)) continue;
    state_.fail(disagreement(0, seat(0).record, r, seat(r).record));
    throw_failure(rank);
  }
}

std::string Meeting::last_call(int rank) {
  Seat& s = seat(rank);
  const std::lock_guard lock(s.mutex);
  if (!s.any) return fmt::format("rank {} has made no call there", rank);
  if (s.inside) return fmt::format("rank {} waits in {}", rank, s.record.text());
  return fmt::format("the last call of rank {} there was {}", rank, s.record.text());
}

// Why this rank gives up waiting at a barrier.
std::string Meeting::absence(int rank, int64_t round) {
  std::vector<int> left, late, waiting;
  for (int r = 0; r < state_.ranks; ++r) {
    if (seat(r).arrived.load() >= round)
      waiting.push_back(r);
    else
      (state_.has_left(r) ? left : late).push_back(r);
  }
  const std::vector<int>& missing = left.empty() ? late : left;
  std::vector<std::string> last;
  for (const int r : missing) last.push_back(last_call(r));
  return absence_text(missing, record_of(rank).text(), name_,
                      left.empty() ? state_.options.timeout_seconds : -1, waiting,
                      join(last, "; "));
}

// ---- Messages between two ranks

std::string Meeting::absence_of_peer(int rank, int peer) {
  return absence_text({{peer}}, record_of(rank).text(), name_,
                      state_.has_left(peer) ? -1 : state_.options.timeout_seconds, {{rank}},
                      last_call(peer));
}

// A collective needs this rank, and a peer waits for this rank's half of a message: neither can
// ever end. Each side looks after it has published its own half, so the later one sees the earlier.
void Meeting::refuse_crossed_messages(int rank) {
  for (int r = 0; r < state_.ranks; ++r)
    if (seat(r).mail_to.load() == rank || seat(r).awaits.load() == rank)
      state_.fail(disagreement(r, record_of(r), rank, record_of(rank)));
}

void Meeting::refuse_crossed_collective(int rank, int peer) {
  const bool sends = seat(rank).call.collective == Collective::send;
  const Seat& other = seat(peer);
  const bool crossed = other.arrived.load() > seat(rank).arrived.load() ||
                       (sends ? other.mail_to : other.awaits).load() == rank;
  // In this order: a peer that has taken the message in the meantime may well be elsewhere now.
  if (crossed && (!sends || seat(rank).mail_to.load() == peer))
    state_.fail(disagreement(peer, record_of(peer), rank, record_of(rank)));
}

void Meeting::send(int rank, const Channel::Call& call) {
  sit(rank, call);
  std::atomic<int>& mail = seat(rank).mail_to;
  const int to = call.peer;
  mail.store(to);
  wake();
  refuse_crossed_collective(rank, to);
  wait(
      rank,
      [&] {
        return (mail.load() != to && mail.load() != kTaken) || state_.failed() ||
               (mail.load() == to && state_.has_left(to));
      },
      true);
  if (int untaken = to; mail.load() == to) {
    if (!state_.failed()) state_.fail(absence_of_peer(rank, to));
    if (mail.compare_exchange_strong(untaken, kNobody)) throw_failure(rank);
  }
  wait(
      rank, [&] { return mail.load() != kTaken; }, false);  // it is being read
  if (mail.exchange(kNobody) == kRefused) throw_failure(rank);
  rise(rank);
}

void Meeting::receive(int rank, const Channel::Call& call) {
  sit(rank, call);
  Seat& s = seat(rank);
  const int from = call.peer;
  std::atomic<int>& mail = seat(from).mail_to;
  s.awaits.store(from);
  refuse_crossed_collective(rank, from);
  wait(
      rank, [&] { return mail.load() == rank || state_.failed() || state_.has_left(from); }, true);
  int posted = rank;
  const bool taken = !state_.failed() && mail.compare_exchange_strong(posted, kTaken);
  s.awaits.store(kNobody);  // before the sender is told: what it does next must not find us here
  if (!taken) {
    if (!state_.failed()) state_.fail(absence_of_peer(rank, from));
    throw_failure(rank);
  }
  const Seat& sender = seat(from);
  const bool good = sender.record.delivers_to(s.record);
  if (good) copy_bytes(sender.call.from, call.to, call.bytes);
  if (!good) state_.fail(disagreement(from, sender.record, rank, s.record));
  mail.store(good ? kNobody : kRefused);
  wake();
  if (!good) throw_failure(rank);
  rise(rank);
}

}  // namespace onefold
