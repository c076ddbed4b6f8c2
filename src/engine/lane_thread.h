// A lane on the CPU: a thread that does jobs in the order they were posted. What a job throws comes
// out of the wait for it, and the jobs after it are not begun.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace onefold {

class LaneThread {
 public:
  LaneThread();
  ~LaneThread();  // finishes what was posted
  LaneThread(const LaneThread&) = delete;
  LaneThread& operator=(const LaneThread&) = delete;

  // Returns the job's number.
  int64_t post(std::function<void()> job);
  // Until the job of this number, and so all before it, are done.
  void wait(int64_t number);
  void drain();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable posted_or_stopped_, finished_;
  std::deque<std::function<void()>> jobs_;
  int64_t posted_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace onefold
