#include "cuda/stream_lane.h"

#include <utility>

#include "base/clock.h"
#include "cuda/check.h"
#include "cuda/ranges.h"

namespace onefold::cuda {
namespace {

// Tickets are looked through for finished ones when there are more than these.
constexpr size_t kManyTickets = 256;

}  // namespace

StreamLane::Event::Event(cudaStream_t stream) {
  check(cudaEventCreate(&handle), "make an event");
  const cudaError_t recorded = cudaEventRecord(handle, stream);
  if (recorded != cudaSuccess) (void)cudaEventDestroy(handle);
  check(recorded, "record an event");
}

StreamLane::Event::~Event() { (void)cudaEventDestroy(handle); }

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
  (void)cudaStreamDestroy(stream_);
}

Ticket StreamLane::post(JobLabel label, Job job) {
  const NamedRange range(label.name);
  SharedEvent begin = record();
  job();
  SharedEvent end = record();
  {
    std::lock_guard lock(mutex_);
    pending_.push_back({std::move(label), std::move(begin), end});
  }
  return add_ticket(std::move(end));
}

void StreamLane::after(const Ticket& ticket) {
  if (!ticket.lane || ticket.lane == this) return;
  SharedEvent begin = record();
  if (const auto* other = dynamic_cast<const StreamLane*>(ticket.lane)) {
    if (const SharedEvent event = other->event_of(ticket.number))
      check(cudaStreamWaitEvent(stream_, event->handle), "let a stream wait for another");
  } else {
    ticket.lane->wait(ticket.number);
  }
  SharedEvent end = record();
  std::lock_guard lock(mutex_);
  pending_.push_back({{}, std::move(begin), std::move(end), ticket.lane});
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
  std::lock_guard lock(mutex_);
  if (pending_.empty()) return {};
  const SharedEvent last = pending_.back().end;
  check(cudaEventSynchronize(last->handle), "wait for a stream");
  std::vector<LaneSpan> spans;
  spans.reserve(pending_.size());
  for (Pending& one : pending_)
    spans.push_back(
        {std::move(one.label), seconds_at(*one.begin), seconds_at(*one.end), one.awaited});
  pending_.clear();
  base_seconds_ = seconds_at(*last);
  base_ = last;
  return spans;
}

}  // namespace onefold::cuda
