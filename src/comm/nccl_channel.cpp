#include "comm/nccl_channel.h"

#include <algorithm>
#include <exception>

#include "base/start_thread.h"

namespace onefold {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWatchEvery = std::chrono::milliseconds(20);
constexpr int64_t kNcclScratchBytes = int64_t{32} << 20;
constexpr int64_t kPlaceAlign = 256;  // of pieces in scratch: whole elements, and wide loads
constexpr size_t kPiecesOfRound = 64;

const std::byte* moved(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* moved(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }

}  // namespace

int64_t nccl_scratch_bytes(int ranks) {
  if (ranks == 1) return 0;
  return std::max(kNcclScratchBytes, kPlaceAlign * static_cast<int64_t>(ranks));
}

// ---- Watching

NcclState::NcclState(std::shared_ptr<Communicator> control_plane, const NcclApi& table,
                     bool own_sums)
    : api(table), control(std::move(control_plane)), library_sums(own_sums) {
  thread_ = start_thread([this] { run(); });
}

NcclState::~NcclState() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclState::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kWatchEvery, [&] { return stopping_; })) {
    if (failed()) continue;
    const std::string others = control->failure();
    const std::string why = others.empty() ? find_problem() : others;
    if (why.empty()) continue;
    lock.unlock();
    others.empty() ? fail(why) : end_work(why);
    lock.lock();
  }
}

std::string NcclState::find_problem() {
  for (Watched& watched : watched_)
    if (std::string why = problem_of(watched); !why.empty()) return why;
  return "";
}

std::string NcclState::problem_of(Watched& watched) {
  const auto now = Clock::now();
  const auto where = [&] {
    return watched.calls.empty()
               ? fmt::format("channel \"{}\"", watched.channel)
               : fmt::format("{} on channel \"{}\"", watched.calls.front().text, watched.channel);
  };
  try {
    while (!watched.calls.empty() && watched.memory->reached(watched.calls.front().mark)) {
      watched.calls.pop_front();
      if (!watched.calls.empty())  // it could not begin before
        watched.calls.front().since = std::max(watched.calls.front().since, now);
    }
  } catch (const std::exception& error) {
    return fmt::format("{} failed: {}", where(), error.what());
  }
  if (const char* wrong = api.error(watched.port))
    return fmt::format("NCCL reports an error in {}: {}", where(), wrong);
  const double seconds = control->options().timeout_seconds;
  if (watched.calls.empty() ||
      std::chrono::duration<double>(now - watched.calls.front().since).count() < seconds)
    return "";
  return fmt::format(
      "{} did not end within {} seconds, although all ranks reached it: a card or a connection "
      "between cards stands still. The ranks' own output and the system's log may show why; if it "
      "is only slow, allow more time",
      where(), seconds);
}

std::string NcclState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclState::throw_failure() const { throw PeerError(failure()); }

bool NcclState::record(const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed()) return false;
  failure_ = why;
  failed_.store(true);
  return true;
}

// A call that this rank is making meanwhile meets a port that was ended, and fails.
void NcclState::abort_ports() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Watched& watched : watched_) api.abort(watched.port);
}

void NcclState::end_work(const std::string& why) noexcept {
  if (record(why)) abort_ports();
}

// The others get the reason before they meet its consequences.
void NcclState::fail(const std::string& why) noexcept {
  if (!record(fmt::format("rank {} failed: {}", control->rank(), why))) return;
  control->abort(why);
  abort_ports();
}

NcclState::Watched& NcclState::watch(std::string_view channel, NcclPort* port, RankMemory& memory) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({std::string(channel), port, &memory, {}});
  return watched_.back();
}

void NcclState::unwatch(Watched& watched) {
  const std::lock_guard lock(mutex_);
  watched_.remove_if([&](const Watched& one) { return &one == &watched; });
}

void NcclState::add_call(Watched& watched, std::string text) {
  const int64_t mark = watched.memory->mark();
  const std::lock_guard lock(mutex_);
  watched.calls.push_back({std::move(text), mark, Clock::now()});
}

// ---- A channel

NcclChannel::NcclChannel(std::shared_ptr<NcclState> state, Communicator& control,
                         const RankGroup& group, RankMemory& memory, std::string_view name,
                         void* scratch)
    : Channel(control.rank(), control.ranks()),
      state_(std::move(state)),
      api_(state_->api),
      memory_(memory),
      name_(channel_name(std::string(name), group)),
      scratch_(static_cast<std::byte*>(scratch)),
      meet_(control.open(fmt::format("{} calls", name), nullptr)),
      sources_(static_cast<size_t>(ranks())) {
  NcclId id{};
  if (rank() == 0) check(api_.make_id(&id));
  const std::string what = fmt::format("open channel {} over NCCL", name_);
  meet_->broadcast(what, 0, &id, sizeof(id));
  check(api_.open(&port_, &id, rank(), ranks(), &memory_));
  watched_ = &state_->watch(name_, port_, memory_);
}

// Work that is under way may wait for a rank that has failed: then it is ended.
NcclChannel::~NcclChannel() {
  if (port_ == nullptr) return;
  state_->unwatch(*watched_);
  if (state_->failed() || std::uncaught_exceptions() > 0) api_.abort(port_);
  api_.close(port_);
}

void NcclChannel::check(const char* problem) {
  if (problem == nullptr) return;
  const std::string others = state_->control->failure();
  if (!others.empty())
    state_->end_work(others);
  else
    state_->fail(record_.what.empty()
                     ? fmt::format("NCCL does not open channel \"{}\": {}", name_, problem)
                     : fmt::format("NCCL fails in {} on channel \"{}\": {}", record_.text(), name_,
                                   problem));
  state_->throw_failure();
}

void NcclChannel::run(const Call& call) {
  if (state_->failed()) state_->throw_failure();
  record_.assign(call);
  meet(call);
  put_on_stream(call);
  state_->add_call(*watched_, record_.text());
}

// Ranks meet on the host before anything is on their streams: a stream that waits for a rank that
// does not come could not say for which. The host is ahead of the card, so this costs the card no
// time. In a message between two ranks the others have no part.
void NcclChannel::meet(const Call& call) {
  const bool sends = call.collective == Collective::send;
  if (!sends && call.collective != Collective::receive) return meet_->barrier(record_.text());
  const std::string what = fmt::format("{}, {} bytes over NCCL", call.what, call.bytes);
  char nothing = 0;
  if (sends)
    meet_->send(what, call.peer, &nothing, 1);
  else
    meet_->receive(what, call.peer, &nothing, 1);
}

void NcclChannel::put_on_stream(const Call& call) {
  switch (call.collective) {
    case Collective::all_gather:
      return gather(call.messages, false);
    case Collective::reduce_scatter:
      return state_->library_sums ? library_reduce(call.messages, false)
                                  : reduce(call.messages, false);
    case Collective::all_reduce:
      if (state_->library_sums) return library_reduce(call.messages, true);
      reduce(call.messages, true);
      return gather(call.messages, true);
    case Collective::broadcast:
      if (call.bytes > 0) check(api_.broadcast(port_, call.to, call.bytes, call.peer));
      return;
    case Collective::all_to_all:
      return exchange(call);
    case Collective::send:
      if (call.bytes > 0) check(api_.send(port_, call.from, call.bytes, call.peer));
      return;
    case Collective::receive:
      if (call.bytes > 0) check(api_.receive(port_, call.to, call.bytes, call.peer));
      return;
    case Collective::barrier:
      return;
  }
}

// In place, every rank's shard lies inside its whole.
void NcclChannel::gather(std::span<const Message> messages, bool in_place) {
  check(api_.begin(port_));
  for (const Message& message : messages) {
    const int64_t bytes = message.shard_bytes();
    if (bytes == 0) continue;
    const void* shard = in_place ? moved(message.whole, rank() * bytes) : message.shard;
    check(api_.all_gather(port_, shard, message.whole, bytes));
  }
  check(api_.end(port_));
}

void NcclChannel::library_reduce(std::span<const Message> messages, bool in_place) {
  check(api_.begin(port_));
  for (const Message& message : messages) {
    if (message.shard_elems == 0) continue;
    check(in_place
              ? api_.all_reduce(port_, message.whole, message.shard_elems * ranks(), message.dtype)
              : api_.reduce_scatter(port_, message.whole, message.shard, message.shard_elems,
                                    message.dtype));
  }
  check(api_.end(port_));
}

// The section of each other rank in the scratch. A single rank receives nothing.
int64_t NcclChannel::section_bytes() const {
  if (ranks() == 1) return kNcclScratchBytes;
  return nccl_scratch_bytes(ranks()) / (ranks() - 1) / kPlaceAlign * kPlaceAlign;
}

// In rounds of as much as the scratch holds. A round may carry many messages, so a bucket of small
// slabs costs few of them.
void NcclChannel::reduce(std::span<const Message> messages, bool in_place) {
  const int64_t section = section_bytes();
  std::vector<Piece> round;
  int64_t filled = 0;
  const auto flush = [&] {
    reduce_round(messages, in_place, round);
    round.clear();
    filled = 0;
  };
  for (size_t m = 0; m < messages.size(); ++m) {
    const int64_t bytes = messages[m].shard_bytes();
    for (int64_t offset = 0; offset < bytes;) {
      if (filled == section || round.size() == kPiecesOfRound) flush();
      const int64_t size = std::min(bytes - offset, section - filled);
      round.push_back({m, offset, size, filled});
      filled += (size + kPlaceAlign - 1) / kPlaceAlign * kPlaceAlign;
      offset += size;
    }
  }
  flush();
}

// The sums go to the messages' shards or, in place, to this rank's pieces of `whole`, which no
// other rank's messages are read from.
void NcclChannel::reduce_round(std::span<const Message> messages, bool in_place,
                               std::span<const Piece> pieces) {
  if (pieces.empty()) return;
  const int64_t section = section_bytes();
  if (ranks() > 1) check(api_.begin(port_));
  for (int i = 1; i < ranks(); ++i)
    for (const Piece& piece : pieces) {
      const Message& message = messages[piece.message];
      check(
          api_.receive(port_, scratch_ + (i - 1) * section + piece.place, piece.bytes, before(i)));
      check(api_.send(port_, moved(message.whole, after(i) * message.shard_bytes() + piece.offset),
                      piece.bytes, after(i)));
    }
  if (ranks() > 1) check(api_.end(port_));
  for (const Piece& piece : pieces) {
    const Message& message = messages[piece.message];
    std::byte* own = moved(message.whole, rank() * message.shard_bytes() + piece.offset);
    for (int r = 0; r < ranks(); ++r) {
      const int steps = (rank() + ranks() - r) % ranks();  // r == before(steps)
      sources_[static_cast<size_t>(r)] =
          steps == 0 ? own : scratch_ + (steps - 1) * section + piece.place;
    }
    memory_.sum(message.dtype, sources_, in_place ? own : moved(message.shard, piece.offset),
                piece.bytes / dtype_bytes(message.dtype));
  }
}

void NcclChannel::exchange(const Call& call) {
  if (call.bytes == 0) return;
  memory_.copy(moved(call.from, rank() * call.bytes), moved(call.to, rank() * call.bytes),
               call.bytes);
  if (ranks() == 1) return;
  check(api_.begin(port_));
  for (int i = 1; i < ranks(); ++i) {
    check(api_.receive(port_, moved(call.to, before(i) * call.bytes), call.bytes, before(i)));
    check(api_.send(port_, moved(call.from, after(i) * call.bytes), call.bytes, after(i)));
  }
  check(api_.end(port_));
}

}  // namespace onefold
