#include "device/lane.h"

#include "base/clock.h"
#include "base/start_thread.h"
#include "base/waiting.h"

namespace onefold {

Ticket InlineLane::post(JobLabel label, Job job) {
  const double begin = now_seconds();
  job();
  spans_.push_back({std::move(label), begin, now_seconds()});
  return {this, ++posted_};
}

void InlineLane::after(const Ticket& ticket) {
  if (!ticket.lane || ticket.lane == this) return;
  const double begin = now_seconds();
  ticket.lane->wait(ticket.number);
  spans_.push_back({{}, begin, now_seconds(), ticket.lane});
}

ThreadLane::ThreadLane(bool of_the_host)
    : of_the_host_(of_the_host), thread_(start_thread([this] { run(); })) {}

ThreadLane::~ThreadLane() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    posted_.notify_all();
  }
  thread_.join();
}

int64_t ThreadLane::enqueue(Item item) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(item));
  posted_.notify_all();
  return ++count_;
}

Ticket ThreadLane::post(JobLabel label, Job job) {
  return {this, enqueue({std::move(label), std::move(job)})};
}

void ThreadLane::after(const Ticket& ticket) {
  if (!ticket.lane || ticket.lane == this) return;
  enqueue({{}, [ticket] { ticket.lane->wait(ticket.number); }, ticket.lane});
}

Ticket ThreadLane::mark() {
  std::lock_guard lock(mutex_);
  return {this, count_};
}

void ThreadLane::wait(int64_t number) {
  const Waiting waiting;
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done_ >= number; });
  if (error_) std::rethrow_exception(error_);
}

std::vector<LaneSpan> ThreadLane::take_spans() {
  std::lock_guard lock(mutex_);
  return std::move(spans_);
}

void ThreadLane::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Item item = std::move(jobs_.front());
    jobs_.pop_front();
    const bool failed = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    const double begin = now_seconds();
    try {
      if (!failed) item.job();
    } catch (...) {
      error = std::current_exception();
    }
    item.job = nullptr;
    lock.lock();
    if (error && !error_) error_ = error;
    spans_.push_back({std::move(item.label), begin, now_seconds(), item.awaited});
    ++done_;
    finished_.notify_all();
  }
}

}  // namespace onefold
