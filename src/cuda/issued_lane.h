// A stream whose jobs are put on it by a thread of its own: for messages between two ranks, whose
// host code waits for the other one, while this rank's computation is given more work. On streams
// alone two ranks could each wait for a message that the other's host has not come to.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "cuda/card.h"
#include "cuda/stream_lane.h"
#include "device/lane.h"

namespace onefold::cuda {

class IssuedLane final : public LaneQueue {
 public:
  explicit IssuedLane(const Card& card);

  cudaStream_t stream() const { return stream_.stream(); }

  Ticket post(JobLabel label, Job job) override;
  void after(const Ticket& ticket) override;
  void wait(int64_t number) override;
  Ticket mark() override { return {this, thread_.mark().number}; }
  std::vector<LaneSpan> take_spans() override;

  // The job's ticket on the stream, once it is there: the host waits for that. What a job threw
  // comes out here.
  Ticket issued(int64_t number);

 private:
  const Card card_;
  StreamLane stream_;
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<const Ticket>> issued_;  // by the number of the thread's job
  ThreadLane thread_;                                        // last: its jobs use the rest
};

}  // namespace onefold::cuda
