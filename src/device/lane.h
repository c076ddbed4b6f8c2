// A lane is an in-order queue of jobs: a thread, a stream of a GPU, or virtual time. A job is host
// code that does the work (CPU), enqueues it (GPU) or only books it (dry). Whoever needs a job's
// result says so with its ticket: another lane with after(), the host with wait(). Times and traces
// come from tickets: each lane keeps a span for every job, and one for every stretch in which it
// had to wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace onefold {

class LaneQueue;

// A job on a lane; one that was never posted is done.
struct Ticket {
  LaneQueue* lane = nullptr;
  int64_t number = 0;
};

// What bytes travel over: to other ranks, or between the device and another tier.
enum class Link : uint8_t { ranks, host, disk };

// What a job is, for those who add up times and draw traces. `tag` is the caller's own.
struct JobLabel {
  int tag = 0;
  int64_t bytes = 0;  // that travel
  Link over = Link::ranks;
  // Between ranks of several hosts: how many of each host send at the same time, each over its own
  // link to the others; 0: it stays on one.
  int host_links = 0;
  bool out = false;  // away from the device, where that makes a difference
  // For what the job does besides: of one core, and what it reads and writes of a card's memory;
  // counted by virtual time.
  double core_seconds = 0, card_bytes = 0;
  std::string name = {};  // empty: not traced
  int action = -1;        // of the program that is walked: its number; -1: none
};

// When a job ran; or (awaited set) when this lane stood still for a job of another one.
struct LaneSpan {
  JobLabel label;
  double begin = 0, end = 0;  // on the device's clock
  const LaneQueue* awaited = nullptr;
};

class LaneQueue {
 public:
  using Job = std::function<void()>;
  virtual ~LaneQueue() = default;

  // Hands over a job. It begins when all jobs before it are done, and all that after() has named.
  virtual Ticket post(JobLabel label, Job job) = 0;
  // The same of a job whose work is given by its key alone: a lane may enqueue again what the job
  // has enqueued under this key before, in the place of running it.
  using Key = std::function<std::string()>;
  virtual Ticket repeat(JobLabel label, const Key& /*key*/, Job job) {
    return post(std::move(label), std::move(job));
  }
  // Jobs posted from now on begin after this one, of whatever lane.
  virtual void after(const Ticket& ticket) = 0;
  // The host waits until the job, and so all before it on this lane, are done. What a job threw
  // comes out here; the jobs after it are not begun.
  virtual void wait(int64_t number) = 0;
  // A ticket for all that has been posted so far.
  virtual Ticket mark() = 0;
  // Whether its jobs never hand work to a device: a stream may then wait for them. Of others, that
  // work could be queued behind the stream that waits, since streams share the card's queues.
  virtual bool is_of_the_host() const { return false; }
  // Spans that ended since the last call; the host has waited for them.
  virtual std::vector<LaneSpan> take_spans() = 0;
};

// Computation on the CPU: the host's own thread does each job as it is posted.
class InlineLane final : public LaneQueue {
 public:
  Ticket post(JobLabel label, Job job) override;
  void after(const Ticket& ticket) override;
  void wait(int64_t) override {}
  Ticket mark() override { return {}; }
  std::vector<LaneSpan> take_spans() override { return std::move(spans_); }

 private:
  int64_t posted_ = 0;
  std::vector<LaneSpan> spans_;
};

// A thread that does jobs in the order in which they were posted.
class ThreadLane final : public LaneQueue {
 public:
  explicit ThreadLane(bool of_the_host = false);
  ~ThreadLane() override;  // finishes what was posted
  ThreadLane(const ThreadLane&) = delete;
  ThreadLane& operator=(const ThreadLane&) = delete;

  Ticket post(JobLabel label, Job job) override;
  void after(const Ticket& ticket) override;
  void wait(int64_t number) override;
  Ticket mark() override;
  bool is_of_the_host() const override { return of_the_host_; }
  std::vector<LaneSpan> take_spans() override;

 private:
  struct Item {
    JobLabel label;
    Job job;
    const LaneQueue* awaited = nullptr;
  };
  int64_t enqueue(Item item);
  void run();

  const bool of_the_host_;
  std::mutex mutex_;
  std::condition_variable posted_, finished_;
  std::deque<Item> jobs_;
  std::vector<LaneSpan> spans_;
  int64_t count_ = 0, done_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace onefold
