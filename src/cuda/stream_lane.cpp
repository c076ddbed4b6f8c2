#include "cuda/stream_lane.h"

#include <utility>

#include "base/clock.h"
#include "cuda/check.h"
#include "cuda/issued_lane.h"
#include "cuda/ranges.h"

namespace onefold::cuda {
namespace {

// Tickets are looked through for finished ones when there are more than these.
constexpr size_t kManyTickets = 256;

// A job that failed has told its own lane, where the host hears of it: nothing may leave a
// callback.
void CUDART_CB wait_for_thread(void* ticket) {
  const std::unique_ptr<Ticket> awaited(static_cast<Ticket*>(ticket));
  try {
    awaited->lane->wait(awaited->number);
  } catch (...) {
  }
}

}  // namespace

StreamLane::Pool::~Pool() {
  for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

cudaEvent_t StreamLane::Pool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "make an event");
  return event;
}

void StreamLane::Pool::give_back(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

StreamLane::Event::Event(std::shared_ptr<Pool> pool, cudaStream_t stream)
    : handle(pool->take()), pool_(std::move(pool)) {
  const cudaError_t recorded = cudaEventRecord(handle, stream);
  if (recorded != cudaSuccess) pool_->give_back(handle);
  check(recorded, "record an event");
}

StreamLane::StreamLane(bool urgent) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for priorities");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least),
        "make a stream");
  base_ = record();
  check(cudaEventSynchronize(base_->handle), "start a stream");
  base_seconds_ = now_seconds();
}

StreamLane::~StreamLane() {
  (void)cudaStreamSynchronize(stream_);
  repeated_.reset();
  (void)cudaStreamDestroy(stream_);
}

Ticket StreamLane::post(JobLabel label, Job job) {
  const NamedRange range(label.name);
  SharedEvent begin = begin_here();
  job();
  return add_job(std::move(label), std::move(begin));
}

Ticket StreamLane::repeat(JobLabel label, const Key& key, Job job) {
  SharedEvent begin = unfinished();
  const bool waits = !begin;
  if (!waits && !repeated_) return post(std::move(label), std::move(job));
  const NamedRange range(label.name);
  if (waits) begin = record();
  if (!repeated_) repeated_ = std::make_unique<RepeatedJobs>(stream_);
  repeated_->run(key(), waits, job);
  return add_job(std::move(label), std::move(begin));
}

Ticket StreamLane::add_job(JobLabel label, SharedEvent begin) {
  SharedEvent end = record();
  add_pending({std::move(label), std::move(begin), end});
  return add_ticket(std::move(end));
}

StreamLane::SharedEvent StreamLane::unfinished() const {
  std::lock_guard lock(mutex_);
  if (!last_ || cudaEventQuery(last_->handle) != cudaErrorNotReady) return nullptr;
  (void)cudaGetLastError();  // "not ready" is not the next call's error
  return last_;
}

StreamLane::SharedEvent StreamLane::begin_here() const {
  SharedEvent last = unfinished();
  return last ? last : record();
}

void StreamLane::add_pending(Pending pending) {
  std::lock_guard lock(mutex_);
  last_ = pending.end;
  pending_.push_back(std::move(pending));
}

void StreamLane::after(const Ticket& ticket) {
  if (auto* const issued = dynamic_cast<IssuedLane*>(ticket.lane))
    return after(issued->issued(ticket.number));
  if (!ticket.lane || ticket.lane == this) return;
  SharedEvent begin = begin_here();
  if (const auto* other = dynamic_cast<const StreamLane*>(ticket.lane)) {
    if (const SharedEvent event = other->event_of(ticket.number))
      check(cudaStreamWaitEvent(stream_, event->handle), "let a stream wait for another");
  } else if (!ticket.lane->is_of_the_host()) {
    ticket.lane->wait(ticket.number);
  } else {
    auto awaited = std::make_unique<Ticket>(ticket);
    check(cudaLaunchHostFunc(stream_, wait_for_thread, awaited.get()),
          "let a stream wait for the host");
    awaited.release();  // the callback's
  }
  SharedEvent end = record();
  add_pending({{}, std::move(begin), std::move(end), ticket.lane});
}

void StreamLane::wait(int64_t number) {
  if (const SharedEvent event = event_of(number))
    check(cudaEventSynchronize(event->handle), "wait for a stream");
}

Ticket StreamLane::mark() { return add_ticket(record()); }

Ticket StreamLane::add_ticket(SharedEvent event) {
  std::lock_guard lock(mutex_);
  if (tickets_.size() > kManyTickets) {
    while (!tickets_.empty() && cudaEventQuery(tickets_.front()->handle) == cudaSuccess)
      tickets_.pop_front();
    (void)cudaGetLastError();  // "not ready" is not the next call's error
  }
  tickets_.push_back(std::move(event));
  return {this, ++count_};
}

StreamLane::SharedEvent StreamLane::event_of(int64_t number) const {
  std::lock_guard lock(mutex_);
  const int64_t from_the_end = count_ - number, kept = static_cast<int64_t>(tickets_.size());
  if (number <= 0 || from_the_end >= kept) return nullptr;
  return tickets_[static_cast<size_t>(kept - 1 - from_the_end)];
}

double StreamLane::seconds_at(const Event& event) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, base_->handle, event.handle), "measure time");
  return base_seconds_ + 1e-3 * static_cast<double>(milliseconds);
}

std::vector<LaneSpan> StreamLane::take_spans() {
  // Not under the lock while it waits: a thread that this stream waits for may ask for a ticket.
  std::vector<Pending> pending;
  {
    std::lock_guard lock(mutex_);
    pending.swap(pending_);
  }
  if (pending.empty()) return {};
  const SharedEvent last = pending.back().end;
  check(cudaEventSynchronize(last->handle), "wait for a stream");
  std::vector<LaneSpan> spans;
  spans.reserve(pending.size());
  const Event* before = nullptr;
  double ended = 0;
  for (Pending& one : pending) {
    const double begin = one.begin.get() == before ? ended : seconds_at(*one.begin);
    before = one.end.get();
    ended = seconds_at(*before);
    spans.push_back({std::move(one.label), begin, ended, one.awaited});
  }
  base_seconds_ = ended;
  base_ = last;
  return spans;
}

}  // namespace onefold::cuda
