#include "engine/lane_thread.h"

#include <utility>

namespace onefold {

LaneThread::LaneThread() : thread_([this] { work(); }) {}

LaneThread::~LaneThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_or_stopped_.notify_one();
  thread_.join();
}

int64_t LaneThread::post(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  posted_or_stopped_.notify_one();
  return ++posted_;
}

void LaneThread::wait(int64_t number) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done_ >= number; });
  if (error_) std::rethrow_exception(error_);
}

void LaneThread::drain() {
  int64_t last = 0;
  {
    std::lock_guard lock(mutex_);
    last = posted_;
  }
  wait(last);
}

void LaneThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_or_stopped_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    const bool failed = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!failed) job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    ++done_;
    finished_.notify_all();
  }
}

}  // namespace onefold
