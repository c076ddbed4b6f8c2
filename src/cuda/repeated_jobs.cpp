#include "cuda/repeated_jobs.h"

#include <utility>

#include "cuda/check.h"

namespace onefold::cuda {
namespace {

// Keys hold addresses. Where those move from step to step, keys do not come again and are forgotten
// together.
constexpr size_t kMostKeys = 4096;
// The first run of a key may try algorithms and load kernels, which a capture cannot hold.
constexpr int kRunsBefore = 2;

}  // namespace

RepeatedJobs::~RepeatedJobs() { forget(); }

void RepeatedJobs::forget() {
  (void)cudaStreamSynchronize(stream_);
  for (auto& [key, kept] : kept_)
    if (kept.graph) (void)cudaGraphExecDestroy(kept.graph);
  kept_.clear();
}

void RepeatedJobs::run(const std::string& key, bool waits, const std::function<void()>& job) {
  if (!kept_.contains(key)) {
    if (!waits) return job();  // keys that never wait would only push out those that do
    if (kept_.size() >= kMostKeys) forget();
  }
  Kept& kept = kept_[key];
  if (!kept.graph && !kept.declined && kept.waited >= kRunsBefore) {
    kept.graph = captured(job);
    kept.declined = !kept.graph;
  }
  if (kept.graph) return check(cudaGraphLaunch(kept.graph, stream_), "launch a graph");
  if (waits) ++kept.waited;
  job();
}

cudaGraphExec_t RepeatedJobs::captured(const std::function<void()>& job) {
  // Of this thread alone: others may take memory meanwhile.
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin a capture");
  cudaGraph_t graph = nullptr;
  bool failed = false;
  try {
    job();
  } catch (...) {
    failed = true;  // if it was not for the capture, it fails again when it is run
  }
  failed = cudaStreamEndCapture(stream_, &graph) != cudaSuccess || failed;
  cudaGraphExec_t exec = nullptr;
  if (!failed && cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) exec = nullptr;
  if (graph) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
  return exec;
}

}  // namespace onefold::cuda
