// A pool of threads that share out numbered chunks of work. What a chunk is must never depend on
// the number of threads: that is how results stay bitwise the same on any machine. A pool belongs
// to one rank; there is no global one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/numa.h"

namespace onefold {

class ThreadPool {
 public:
  // `threads` counts the caller, who works too; 0 means one for each core this process may use.
  explicit ThreadPool(int threads) : ThreadPool(threads, numa_nodes()) {}
  // The other threads are bound to these nodes, divided as their cores are. The caller may run on
  // all of them: what it starts later inherits its cores.
  ThreadPool(int threads, const std::vector<NumaNode>& nodes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(chunk, thread) once for each chunk in [0, chunks), thread in [0, threads()). Chunks
  // are begun in their order: one may wait for what those of lower numbers do, if these do not
  // throw. Returns when all are done; the first exception is rethrown. Calls must not nest.
  void run(int64_t chunks, const std::function<void(int64_t chunk, int thread)>& work);

 private:
  void worker(int thread, int spins);
  void drain(int thread);
  void run_chunk(int64_t chunk, int thread);

  std::vector<std::thread> workers_;
  const std::function<void(int64_t, int)>* work_ = nullptr;
  int64_t chunks_ = 0;
  // The number of the call to run() in the upper half, the chunks that no thread has taken in the
  // lower one. A thread that has taken a chunk keeps run() from returning, so work_ and chunks_ are
  // those of the same call; one that comes late finds none.
  alignas(64) std::atomic<uint64_t> tickets_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};  // chunks
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::exception_ptr error_;
};

// What a thread calls between two looks at what it waits for without sleeping.
void relax();

// Cores that this process may run on (its affinity mask, not the machine's count).
int available_cores();

}  // namespace onefold
