// Which threads stand still for others. Where several wait for each other and nothing goes on, this
// tells who waits from the one that all wait for.
#pragma once

#include <atomic>
#include <memory>

namespace onefold {

// While one lives, the thread that made it waits for another thread.
class Waiting {
 public:
  // How many live on a thread; outlives the thread.
  using Count = std::shared_ptr<std::atomic<int>>;
  static const Count& of_this_thread() {
    thread_local const Count count = std::make_shared<std::atomic<int>>(0);
    return count;
  }

  Waiting() : count_(of_this_thread()) { ++*count_; }
  ~Waiting() { --*count_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const Count& count_;
};

}  // namespace onefold
