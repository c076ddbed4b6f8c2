// What jobs of a stream enqueue, kept as CUDA graphs: a job whose work is given by a key alone is
// not run again, its graph is launched. That takes a few microseconds of the host where dozens of
// launches would take a hundred, and the card has less to do between two kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <unordered_map>

namespace onefold::cuda {

class RepeatedJobs {
 public:
  explicit RepeatedJobs(cudaStream_t stream) : stream_(stream) {}
  ~RepeatedJobs();
  RepeatedJobs(const RepeatedJobs&) = delete;
  RepeatedJobs& operator=(const RepeatedJobs&) = delete;

  // Runs the job, or enqueues what it enqueued under this key before. `waits`: the card has nothing
  // to do at the moment. Only where it does is a graph made: elsewhere the host is ahead, and a
  // graph would gain nothing.
  void run(const std::string& key, bool waits, const std::function<void()>& job);

 private:
  struct Kept {
    int waited = 0;  // runs that found the card without work
    bool declined = false;
    cudaGraphExec_t graph = nullptr;
  };
  void forget();
  // The graph of what the job enqueues; null if a capture cannot hold it. Nothing has been done.
  cudaGraphExec_t captured(const std::function<void()>& job);

  const cudaStream_t stream_;
  std::unordered_map<std::string, Kept> kept_;
};

}  // namespace onefold::cuda
