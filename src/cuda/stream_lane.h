// A lane that is a stream: a job's host code runs as it is posted and enqueues work, which the card
// does in order. Times come from events around each job; one that is posted while the one before it
// still runs begins where that ends, and needs no event of its own: a step has hundreds of jobs,
// and each event is microseconds in which the card computes nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <mutex>

#include "cuda/repeated_jobs.h"
#include "device/lane.h"

namespace onefold::cuda {

class StreamLane final : public LaneQueue {
 public:
  // Of two lanes that could run work at the same time, the card begins with an urgent one's.
  explicit StreamLane(bool urgent = false);
  ~StreamLane() override;  // waits for what was posted
  StreamLane(const StreamLane&) = delete;
  StreamLane& operator=(const StreamLane&) = delete;

  cudaStream_t stream() const { return stream_; }

  // What the job throws comes out at once.
  Ticket post(JobLabel label, Job job) override;
  Ticket repeat(JobLabel label, const Key& key, Job job) override;
  // Another stream's job, or one of the host's, is awaited by this stream; any other lane's by the
  // thread that asks. Until a lane of messages has put its job on a stream, the thread waits too.
  void after(const Ticket& ticket) override;
  void wait(int64_t number) override;
  Ticket mark() override;
  // Waits for all jobs that were posted.
  std::vector<LaneSpan> take_spans() override;

 private:
  // Events that are not in use: making one takes as long as recording it.
  class Pool {
   public:
    Pool() = default;
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    cudaEvent_t take();
    void give_back(cudaEvent_t event);

   private:
    std::mutex mutex_;
    std::vector<cudaEvent_t> free_;
  };

  // A place in the stream's order; shared, so that one thread may wait for it while another forgets
  // it.
  class Event {
   public:
    Event(std::shared_ptr<Pool> pool, cudaStream_t stream);
    ~Event() { pool_->give_back(handle); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    const cudaEvent_t handle;

   private:
    const std::shared_ptr<Pool> pool_;
  };
  using SharedEvent = std::shared_ptr<const Event>;

  struct Pending {
    JobLabel label;
    SharedEvent begin, end;
    const LaneQueue* awaited = nullptr;
  };

  SharedEvent record() const { return std::make_shared<Event>(pool_, stream_); }
  Ticket add_job(JobLabel label, SharedEvent begin);
  // The end of the last job, while the card has not come to it.
  SharedEvent unfinished() const;
  // Where what is enqueued next begins.
  SharedEvent begin_here() const;
  void add_pending(Pending pending);
  Ticket add_ticket(SharedEvent event);
  // When a ticket is done; null: it is.
  SharedEvent event_of(int64_t number) const;
  double seconds_at(const Event& event) const;

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<RepeatedJobs> repeated_;  // made when there are some
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  mutable std::mutex mutex_;  // of what follows
  int64_t count_ = 0;
  std::deque<SharedEvent> tickets_;  // the last one's number is count_; the first are done, and
                                     // may have been dropped
  std::vector<Pending> pending_;
  SharedEvent last_;  // the end of what was added to them last
  // Spans are measured from here. It moves along: the distance between two events is a float.
  SharedEvent base_;
  double base_seconds_ = 0;
};

}  // namespace onefold::cuda
